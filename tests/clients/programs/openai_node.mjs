// The official client for JavaScript. Started with the server's URL; prints one JSON object of findings.

import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "unused", maxRetries: 0 });
const greedy = { model: "SmolLM2-135M-Instruct.Q4_1.gguf", temperature: 0, max_tokens: 24 };
const question = [{ role: "user", content: "What is the capital of France?" }];
const weather = [{ role: "user", content: "What is the weather in Paris?" }];
const parameters = {
  type: "object",
  properties: {
    city: { type: "string", maxLength: 20 },
    unit: { type: "string", enum: ["celsius", "fahrenheit"] },
    days: { type: "integer", minimum: 1, maximum: 7 },
  },
  required: ["city", "unit", "days"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "get_weather", parameters } };

const findings = {
  async plain() {
    return await client.chat.completions.create({ ...greedy, messages: question });
  },
  async streamed() {
    const chunks = [];
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create({ ...greedy, ...options, messages: question })) {
      chunks.push(chunk);
    }
    return chunks;
  },
  async stream_helper() {
    return await client.chat.completions.stream({ ...greedy, messages: question }).finalChatCompletion();
  },
  async logprobs() {
    return await client.chat.completions.create({ ...greedy, messages: question, logprobs: true, top_logprobs: 3 });
  },
  async streamed_tool_call() {
    const asked = { ...greedy, max_tokens: 100, messages: weather, tools: [tool], tool_choice: "required" };
    return await client.chat.completions.stream({ ...asked, parallel_tool_calls: false }).finalChatCompletion();
  },
  async tool_run() {
    // The client calls the function itself and sends its result back.
    const calls = [];
    const called = (given) => {
      calls.push(given);
      return JSON.stringify({ degrees: 21 });
    };
    const runner = client.chat.completions.runTools({
      ...greedy,
      max_tokens: 100,
      messages: weather,
      tools: [{ type: "function", function: { ...tool.function, function: called, parse: JSON.parse } }],
      tool_choice: { type: "function", function: { name: "get_weather" } },
    });
    await runner.done();
    return { calls, roles: runner.messages.map((message) => message.role) };
  },
  async parsed() {
    const response_format = { type: "json_schema", json_schema: { name: "forecast", strict: true, schema: parameters } };
    const answer = await client.chat.completions.parse({ ...greedy, max_tokens: 100, messages: weather, response_format });
    return JSON.parse(answer.choices[0].message.content);
  },
  async wrong_field() {
    return await client.chat.completions.create({ ...greedy, messages: question, logit_bias: { 99999999: 5 } });
  },
  async left_early() {
    const stream = await client.chat.completions.create({ ...greedy, max_tokens: 500, stream: true, messages: question });
    let seen = 0;
    for await (const _ of stream) {
      seen += 1;
      if (seen === 3) break;
    }
    return seen;
  },
};

const report = {};
for (const [name, find] of Object.entries(findings)) {
  try {
    report[name] = await find();
  } catch (error) {
    console.error(error);
    const { status, code, param } = error;
    report[name] = { raised: error.constructor.name, text: error.message, status_code: status, code, param };
  }
}
console.log(JSON.stringify(report));
