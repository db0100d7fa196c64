// Prints what the official JavaScript client makes of a gateway's answers, as one JSON object.
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "hello" }];
const common = { model, messages, temperature: 0, max_tokens: 12 };
const found = {};

const whole = await client.chat.completions.create(common);
found.whole = whole.choices[0].message.content;
found.usage = whole.usage.completion_tokens;

let streamed = "";
const stream = await client.chat.completions.create({ ...common, stream: true });
for await (const chunk of stream) streamed += chunk.choices[0].delta.content ?? "";
found.streamed = streamed;

const tool = { type: "function", function: { name: "time" } };
const called = await client.chat.completions.create({
  ...common, max_tokens: 100, tools: [tool], tool_choice: { type: "function", function: { name: "time" } },
});
found.call = called.choices[0].message.tool_calls[0].function.name;

try {
  await client.chat.completions.create({ ...common, model: "nobody" });
} catch (error) {
  found.error = { kind: error.constructor.name, status: error.status, code: error.code, message: error.message };
}

const long = await client.chat.completions.create({ ...common, max_tokens: 400, stream: true });
found.before_abort = 0;
for await (const chunk of long) {
  if (++found.before_abort === 3) long.controller.abort();
}
found.models = [];
for await (const each of client.models.list()) found.models.push(each.id);
console.log(JSON.stringify(found));
