// A closed loop of keep-alive connections: each sends its next request as soon as the answer before is whole. Chunks are
// known by the "@" that the mock writes into each.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common.h"

namespace {

constexpr int64_t kConnectLimitNs = 5'000'000'000;

struct Job {
    int port;
    int connections;
    int64_t requests;         // At most.
    int64_t seconds_ns;       // No request begins after so long.
    int64_t limit_ns;         // What isn't whole by then isn't waited for.
    int64_t stagger_ns;       // Between the starts of connections.
    int chunks;               // That each answer must have.
};

struct Result {
    int64_t answered, failed, broken, unfinished, chunks, wall_ns, firsts;
};

enum class State { kHead, kBody, kChunkSize, kChunkData, kChunkEnd, kTrailer };

struct Connection {
    int fd = -1;
    bool busy = false, closes = false;
    State state = State::kHead;
    int status = 0, chunks = 0;
    int64_t left = 0, began = 0, first = 0;
    std::string line;  // Of the head, a chunk's size or the trailer.
    std::string request;
    size_t sent = 0;
};

class Client {
  public:
    Client(const Job& job, const char* const* requests, const int64_t* lengths, int count, int64_t* firsts, int64_t room)
        : job_(job), requests_(requests), lengths_(lengths), count_(count), firsts_(firsts), room_(room),
          epoll_(epoll_create1(0)), connections_(static_cast<size_t>(job.connections)) {}

    ~Client() {
        for (Connection& c : connections_) drop(c);
        close(epoll_);
    }

    Result run() {
        connect_all();
        int64_t t0 = now_ns();
        size_t launched = 0;
        for (;;) {
            int64_t at = now_ns() - t0;
            if (at > job_.seconds_ns) over_ = true;
            if (over_ ? live_ == 0 : (launched == connections_.size() && live_ == 0)) break;
            if (at > job_.limit_ns) break;
            while (launched < connections_.size() && !over_ && at >= job_.stagger_ns * static_cast<int64_t>(launched))
                start(connections_[launched++]);
            turn(launched < connections_.size() && !over_ ? 0 : 20);
        }
        result_.unfinished = live_;
        result_.wall_ns = now_ns() - t0;
        return result_;
    }

  private:
    void open(Connection& c) {
        c.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        send_at_once(c.fd);
        sockaddr_in address = loopback(job_.port);
        connect(c.fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | EPOLLET;
        event.data.ptr = &c;
        epoll_ctl(epoll_, EPOLL_CTL_ADD, c.fd, &event);
    }

    // First of all, so that it isn't measured.
    void connect_all() {
        for (Connection& c : connections_) open(c);
        int64_t until = now_ns() + kConnectLimitNs;
        size_t open = 0;
        epoll_event events[256];
        while (open < connections_.size() && now_ns() < until) {
            int count = epoll_wait(epoll_, events, 256, 50);
            for (int i = 0; i < count; i++) open += (events[i].events & EPOLLOUT) != 0;
        }
    }

    void drop(Connection& c) {
        if (c.fd >= 0) close(c.fd);
        c.fd = -1;
    }

    void start(Connection& c) {
        if (over_ || begun_ >= job_.requests) {
            over_ = true;
            return;
        }
        int64_t which = begun_++ % count_;
        c.request.assign(requests_[which], static_cast<size_t>(lengths_[which]));
        c.sent = 0;
        c.busy = true;
        live_++;
        c.state = State::kHead;
        c.line.clear();
        c.closes = false;
        c.status = c.chunks = 0;
        c.first = 0;
        c.began = now_ns();
        if (c.fd < 0) open(c);
        write(c);
    }

    void write(Connection& c) {
        while (c.sent < c.request.size()) {
            ssize_t n = send(c.fd, c.request.data() + c.sent, c.request.size() - c.sent, MSG_NOSIGNAL);
            if (n <= 0) return;
            c.sent += static_cast<size_t>(n);
        }
    }

    void turn(int wait_ms) {
        epoll_event events[256];
        int count = epoll_wait(epoll_, events, 256, wait_ms);
        for (int i = 0; i < count; i++) {
            auto& c = *static_cast<Connection*>(events[i].data.ptr);
            if (c.fd < 0) continue;
            if ((events[i].events & EPOLLOUT) && c.busy) write(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read(c);
        }
    }

    void read(Connection& c) {
        static char buffer[1 << 18];
        for (int fd = c.fd; c.fd == fd;) {
            ssize_t n = recv(fd, buffer, sizeof buffer, 0);
            if (n < 0 && errno == EAGAIN) return;
            if (n <= 0) {
                drop(c);
                if (c.busy) {
                    result_.broken++;
                    ended(c);
                }
                return;
            }
            if (c.busy) parse(c, buffer, static_cast<size_t>(n), now_ns());
        }
    }

    void parse(Connection& c, const char* data, size_t size, int64_t now) {
        while (size && c.busy) {
            size_t used = 1;
            switch (c.state) {
                case State::kHead:
                    c.line += *data;
                    if (c.line.size() >= 4 && c.line.compare(c.line.size() - 4, 4, "\r\n\r\n") == 0) head(c, now);
                    break;
                case State::kChunkSize:
                    if (*data == '\n') {
                        c.left = strtoll(c.line.c_str(), nullptr, 16);
                        c.line.clear();
                        c.state = c.left ? State::kChunkData : State::kTrailer;
                    } else {
                        c.line += *data;
                    }
                    break;
                case State::kBody:
                case State::kChunkData:
                    used = std::min(size, static_cast<size_t>(c.left));
                    count(c, data, used, now);
                    c.left -= static_cast<int64_t>(used);
                    if (!c.left && c.state == State::kBody)
                        whole(c, now);
                    else if (!c.left)
                        c.state = State::kChunkEnd;
                    break;
                case State::kChunkEnd:
                    if (*data == '\n') c.state = State::kChunkSize;
                    break;
                case State::kTrailer:
                    if (*data == '\n' && c.line.empty())
                        whole(c, now);
                    else if (*data == '\n')
                        c.line.clear();
                    else if (*data != '\r')
                        c.line += *data;
                    break;
            }
            data += used;
            size -= used;
        }
    }

    void head(Connection& c, int64_t now) {
        for (char& letter : c.line) letter = static_cast<char>(tolower(letter));
        c.status = atoi(c.line.c_str() + 9);
        c.closes = c.line.find("\r\nconnection: close") != std::string::npos;
        size_t length = c.line.find("\r\ncontent-length:");
        bool chunked = c.line.find("\r\ntransfer-encoding: chunked") != std::string::npos;
        c.left = length == std::string::npos ? 0 : strtoll(c.line.c_str() + length + 17, nullptr, 10);
        c.line.clear();
        if (c.status == 100) return;
        c.state = chunked ? State::kChunkSize : State::kBody;
        if (!chunked && !c.left) whole(c, now);
    }

    void count(Connection& c, const char* data, size_t size, int64_t now) {
        const char* end = data + size;
        while (data < end && (data = static_cast<const char*>(memchr(data, '@', static_cast<size_t>(end - data))))) {
            if (!c.chunks++) c.first = now;
            data++;
        }
    }

    void whole(Connection& c, int64_t now) {
        result_.chunks += c.chunks;
        if (c.status == 200 && c.chunks == job_.chunks) {
            result_.answered++;
            if (result_.firsts < room_) firsts_[result_.firsts++] = (c.first ? c.first : now) - c.began;
        } else {
            result_.failed++;
        }
        if (c.closes) drop(c);
        ended(c);
    }

    void ended(Connection& c) {
        c.busy = false;
        live_--;
        start(c);
    }

    Job job_;
    const char* const* requests_;
    const int64_t* lengths_;
    int64_t count_;
    int64_t* firsts_;
    int64_t room_;
    int epoll_;
    std::vector<Connection> connections_;
    Result result_{};
    int64_t begun_ = 0, live_ = 0;
    bool over_ = false;
};

}  // namespace

// `firsts` gets, in ns and for each good answer, the time to its first chunk, or to its end where it has none.
extern "C" void run_load(const Job* job, const char* const* requests, const int64_t* lengths, int count, int64_t* firsts,
                         int64_t room, Result* result) {
    signal(SIGPIPE, SIG_IGN);
    *result = Client(*job, requests, lengths, count, firsts, room).run();
}
