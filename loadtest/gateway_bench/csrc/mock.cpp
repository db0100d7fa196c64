// Stands for an engine: one thread, HTTP/1.1 with keep-alive, answers at once. Cheap enough that a proxy in front of it
// is what a measurement shows.
//
// GET /control?gap_us=N&chunks=N&delivered=N&reset=1 sets what streams begun from now on do, and tells the counters;
// delivered=none: answers don't tell how much of the prompt was cached, as those of other engines don't.
// gap 0: one chunk of every live stream a turn of the loop, as the steps of an engine that is never late would be.

#include <sys/timerfd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common.h"

namespace {

constexpr char kAnswer[] =
    R"({"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion","created":1700000000,)"
    R"("model":"mock","choices":[{"index":0,"message":{"role":"assistant","content":"Yes: a ramp of 1:12 leads to the )"
    R"(side door, and the lift behind it is 90 cm wide."},"logprobs":null,"finish_reason":"stop"}],)"
    R"("usage":{"prompt_tokens":256,"completion_tokens":24,"total_tokens":280,"prompt_tokens_details":)"
    R"({"cached_tokens":240}}})";
constexpr char kModels[] =
    R"({"object":"list","data":[{"id":"mock","object":"model","created":1700000000,"owned_by":"mock",)"
    R"("max_model_len":32768}]})";
constexpr char kInfo[] =  // For the routers that ask it.
    R"({"model_path":"mock","tokenizer_path":"mock","served_model_name":"mock","model_id":"mock",)"
    R"("is_generation":true,"tp_size":1,"dp_size":1,"max_total_num_tokens":100000,"max_running_requests":256,)"
    R"("context_length":32768,"version":"0.5.6","internal_states":[{}]})";
constexpr char kLoad[] = R"([{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}])";
constexpr char kStreamEnd[] =
    "data: {\"id\":\"chatcmpl-0\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\","
    "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
constexpr size_t kHeadMax = 64 << 10;

struct Connection {
    explicit Connection(int open) : fd(open) {}

    int fd;
    std::string in, out;
    size_t sent = 0;
    bool blocked = false;    // What is to be sent doesn't go out.
    bool streams = false;
    bool closes = false;     // After the answer.
    int left = 0;            // Chunks.
    int64_t gap_ns = 0, due = 0;
};

struct Counters {
    long requests = 0, streams = 0, finished = 0, cut = 0, connections = 0;
};

class Mock {
  public:
    explicit Mock(int listener) : listener_(listener), epoll_(epoll_create1(0)) {
        timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        watch(listener_, &listener_, EPOLLIN, EPOLL_CTL_ADD);
        watch(timer_, &timer_, EPOLLIN, EPOLL_CTL_ADD);
    }

    void run() {
        epoll_event events[512];
        for (;;) {
            int count = epoll_wait(epoll_, events, 512, has_ready_stream() ? 0 : -1);
            for (int i = 0; i < count; i++) {
                void* what = events[i].data.ptr;
                if (what == &listener_)
                    accept_all();
                else if (what == &timer_)
                    drain_timer();
                else if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                    read(static_cast<Connection*>(what));
                else
                    flush(static_cast<Connection*>(what));
            }
            emit_all();
            arm_timer();
        }
    }

  private:
    void watch(int fd, void* what, uint32_t events, int how) {
        epoll_event event{};
        event.events = events;
        event.data.ptr = what;
        epoll_ctl(epoll_, how, fd, &event);
    }

    bool has_ready_stream() const {
        for (Connection* c : flat_out_)
            if (!c->blocked) return true;
        return false;
    }

    void accept_all() {
        for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
            send_at_once(fd);
            auto* c = new Connection(fd);
            counters_.connections++;
            watch(fd, c, EPOLLIN, EPOLL_CTL_ADD);
        }
    }

    void drain_timer() {
        uint64_t expirations;
        while (::read(timer_, &expirations, sizeof expirations) > 0) {
        }
    }

    void arm_timer() {
        itimerspec at{};
        if (!timed_.empty()) {
            int64_t due = std::max<int64_t>(timed_.begin()->first, 1);
            at.it_value = {due / 1'000'000'000, due % 1'000'000'000};
        }
        timerfd_settime(timer_, TFD_TIMER_ABSTIME, &at, nullptr);
    }

    void close_connection(Connection* c) {
        if (c->streams) {
            counters_.cut++;
            forget(c);
        }
        close(c->fd);
        delete c;
    }

    void forget(Connection* c) {
        c->streams = false;
        c->gap_ns ? (void)timed_.erase({c->due, c}) : (void)flat_out_.erase(c);
    }

    // False where the connection is gone.
    bool flush(Connection* c) {
        while (c->sent < c->out.size()) {
            ssize_t n = send(c->fd, c->out.data() + c->sent, c->out.size() - c->sent, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN) {
                if (!c->blocked) watch(c->fd, c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
                c->blocked = true;
                return true;
            }
            if (n < 0) {
                close_connection(c);
                return false;
            }
            c->sent += static_cast<size_t>(n);
        }
        c->out.clear();
        c->sent = 0;
        if (c->blocked) watch(c->fd, c, EPOLLIN, EPOLL_CTL_MOD);
        c->blocked = false;
        if (c->closes && !c->streams) {
            close_connection(c);
            return false;
        }
        return true;
    }

    void read(Connection* c) {
        char buffer[1 << 16];
        for (;;) {
            ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN)) return close_connection(c);
            if (n < 0) break;
            c->in.append(buffer, static_cast<size_t>(n));
            if (n < static_cast<ssize_t>(sizeof buffer)) break;
        }
        while (!c->streams && take_request(c)) {
        }
        flush(c);
    }

    // Whether there was a whole one.
    bool take_request(Connection* c) {
        size_t end = c->in.find("\r\n\r\n");
        if (end == std::string::npos) {
            if (c->in.size() > kHeadMax) c->closes = true, reply(c, 431, "{}");
            return false;
        }
        std::string head = c->in.substr(0, end + 2);
        for (char& letter : head) letter = static_cast<char>(tolower(letter));
        size_t length = 0;
        if (size_t at = head.find("\r\ncontent-length:"); at != std::string::npos)
            length = strtoul(head.c_str() + at + 17, nullptr, 10);
        if (c->in.size() < end + 4 + length) return false;
        if (head.find("\r\nconnection: close") != std::string::npos) c->closes = true;
        size_t path = head.find(' ') + 1;
        answer(c, head.substr(path, head.find(' ', path) - path), std::string_view(c->in).substr(end + 4, length));
        c->in.erase(0, end + 4 + length);
        return true;
    }

    void answer(Connection* c, const std::string& path, std::string_view body) {
        if (path == "/v1/chat/completions" || path == "/v1/completions")
            return generate(c, body);
        if (path.rfind("/control", 0) == 0) return control(c, path);
        if (path == "/health" || path == "/ping" || path == "/health_generate") return reply(c, 200, "{}");
        if (path == "/v1/models") return reply(c, 200, kModels);
        if (path.find("model_info") != path.npos || path.find("server_info") != path.npos) return reply(c, 200, kInfo);
        if (path.rfind("/get_load", 0) == 0) return reply(c, 200, kLoad);
        if (path == "/version") return reply(c, 200, R"({"version":"0.11.0"})");
        reply(c, 404, R"({"error":{"message":"no such path"}})");
    }

    void generate(Connection* c, std::string_view body) {
        counters_.requests++;
        if (body.empty() || body.front() != '{') return reply(c, 400, R"({"error":{"message":"no JSON"}})");
        size_t at = body.find("\"stream\"");
        if (at != body.npos) at = body.find_first_not_of(": ", at + 8);
        if (at == body.npos || body[at] != 't') return reply(c, 200, kAnswer);
        counters_.streams++;
        c->out += "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n";
        c->out += delivered_ + "transfer-encoding: chunked\r\n\r\n";
        c->streams = true;
        c->left = chunks_;
        c->gap_ns = gap_ns_;
        c->due = now_ns();
        c->gap_ns ? (void)timed_.insert({c->due, c}) : (void)flat_out_.insert(c);
        // The first chunk goes out with the head, as an engine's does that sends no head before it.
        add_chunk(c);
    }

    void control(Connection* c, const std::string& path) {
        auto number = [&](const char* name) {
            size_t at = path.find(name);
            return at == path.npos ? -1L : strtol(path.c_str() + at + strlen(name), nullptr, 10);
        };
        if (long v = number("gap_us="); v >= 0) gap_ns_ = v * 1000;
        if (long v = number("chunks="); v > 0) chunks_ = static_cast<int>(v);
        if (path.find("delivered=none") != path.npos)
            delivered_.clear();
        else if (long v = number("delivered="); v >= 0)
            delivered_ = "x-ryokan-delivered-tokens: " + std::to_string(v) + "\r\n";
        if (number("reset=") == 1) counters_ = {};
        char body[256];
        snprintf(body, sizeof body,
                 R"({"requests":%ld,"streams":%ld,"finished":%ld,"cut":%ld,"connections":%ld,"live":%zu})",
                 counters_.requests, counters_.streams, counters_.finished, counters_.cut, counters_.connections,
                 flat_out_.size() + timed_.size());
        reply(c, 200, body);
    }

    void reply(Connection* c, int status, const char* body) {
        char head[256];
        snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n%scontent-length: %zu\r\n\r\n",
                 status, status == 200 ? "OK" : "No", delivered_.c_str(), strlen(body));
        c->out += head;
        c->out += body;
    }

    void emit_all() {
        std::vector<Connection*> due(flat_out_.begin(), flat_out_.end());
        if (!timed_.empty()) {
            int64_t now = now_ns();
            for (auto& [at, c] : timed_) {
                if (at > now) break;
                due.push_back(c);
            }
        }
        for (Connection* c : due)
            if (!c->blocked || c->gap_ns) {
                add_chunk(c);
                flush(c);
            }
    }

    void add_chunk(Connection* c) {
        char event[320], framed[384];
        int length = snprintf(event, sizeof event,
                              "data: {\"id\":\"chatcmpl-0\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
                              "\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"@%016lld\"},"
                              "\"logprobs\":null,\"finish_reason\":null}]}\n\n",
                              static_cast<long long>(now_ns()));
        int size = snprintf(framed, sizeof framed, "%x\r\n%s\r\n", length, event);
        c->out.append(framed, static_cast<size_t>(size));
        if (--c->left <= 0) {
            size = snprintf(framed, sizeof framed, "%zx\r\n%s\r\n0\r\n\r\n", strlen(kStreamEnd), kStreamEnd);
            c->out.append(framed, static_cast<size_t>(size));
            forget(c);
            counters_.finished++;
        } else if (c->gap_ns) {
            timed_.erase({c->due, c});
            c->due += c->gap_ns;
            timed_.insert({c->due, c});
        }
    }

    int listener_, epoll_, timer_;
    int64_t gap_ns_ = 0;
    int chunks_ = 64;
    std::string delivered_;
    Counters counters_;
    std::unordered_set<Connection*> flat_out_;
    std::set<std::pair<int64_t, Connection*>> timed_;
};

}  // namespace

// Serves on that port of the loopback until the process is ended; returns errno where it can't.
extern "C" int serve_mock(int port) {
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address = loopback(port);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) || listen(listener, 4096)) return errno;
    Mock(listener).run();
    return 0;
}
