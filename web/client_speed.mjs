// Prints how long a report takes in Node, with everything that a phone does: `npm run client:speed`. On a machine with
// other work, the processor's time is the one to read; it includes V8's compiler and collector in other threads.
import { report } from "../build/client/client.js";

const REPORTS = 100;
const DEPTH = 6;
const KEYS = {
  leader: "afd17c19bd41873867f5ffbaa83307ea2480f1e00665fa3d0119fdd3f250c90a",
  helper: "4c122f2c0b59278377c17b03166a947ed8ad45822ca6ef3cc66d3fc95e103413",
  collector: "1ebdad1dbb6bbb44621165987dfb57b85088c80f9dad14b0f3b388060793f566",
  verify: "8a46fc2bfaf0260430369aaa327d8761a28aaec4eb13cab4c78ffa22a9ff1402",
};

/** Returns names of a tree with this number of entries, 1 and a multiple of 3: nodes are split level by level. */
function tree(entries) {
  const names = ["r"];
  for (let next = 0; names.length < (4 * entries - 1) / 3; next++) names.push(...[0, 1, 2, 3].map((digit) => names[next] + digit));
  return names.slice(1);
}

async function measure(entries, more = {}) {
  const task = {
    format: "sfumato split task 1", name: "speed", region: [3, 1, 3.13, 1.13], depth: DEPTH, epsilon: 1, min_batch: 1,
    start: "2026-11-20T00:00:00Z", end: "2026-11-21T00:00:00Z", tree: tree(entries), ...KEYS, ...more,
  };
  const file = new TextEncoder().encode(JSON.stringify(task));
  const [times, processor] = [[], []];
  let size = 0;
  for (let i = 0; i < REPORTS; i++) {
    const forgetful = { getItem: () => null, setItem: () => undefined };
    const [started, used] = [performance.now(), process.cpuUsage()];
    size = (await report(file, { longitude: 3.05, latitude: 1.07 }, forgetful, { now: Date.UTC(2026, 10, 20) / 1000 })).length;
    times.push(performance.now() - started);
    const { user, system } = process.cpuUsage(used);
    processor.push((user + system) / 1000);
  }
  const median = (values) => [...values].sort((a, b) => a - b)[REPORTS / 2].toFixed(1);
  const taken = { "first, processor ms": processor[0].toFixed(1), "median, ms": median(times), "median, processor ms": median(processor) };
  return { entries, max_value: task.max_value ?? 1, "KB a report": (size / 1000).toFixed(1), ...taken };
}

console.log(`Node ${process.version}, ${REPORTS} reports each. Goal: a median of at most 20 ms for 340 entries.`);
console.table([await measure(340), await measure(1024), await measure(4096), await measure(340, { max_value: 10 })]);
