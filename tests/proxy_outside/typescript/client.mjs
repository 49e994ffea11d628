// Asks a proxy for the turns named on standard input, with the official TypeScript SDK, and prints what it accumulated.
import Anthropic from "@anthropic-ai/sdk";
import { readFileSync } from "node:fs";

const { url, turns } = JSON.parse(readFileSync(0, "utf8"));
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });

const plain = (message) => ({
  content: message.content.map((block) =>
    block.type === "tool_use" ? [block.type, block.name, block.input] : [block.type, block[block.type]],
  ),
  stop_reason: message.stop_reason,
  usage: [message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens],
});

async function ask({ body, stream }) {
  try {
    if (!stream) return plain(await client.messages.create(body));
    const blocks = [];
    const running = client.messages.stream(body).on("contentBlock", (block) => blocks.push(block.type));
    return { ...plain(await running.finalMessage()), blocks };
  } catch (error) {
    return { error: error.constructor.name, status: error.status ?? null, message: String(error.message) };
  }
}

const results = [];
for (const turn of turns) results.push(await ask(turn));
console.log(JSON.stringify(results));
