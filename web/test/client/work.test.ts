// @vitest-environment node
/// <reference types="node" />
import { Session } from "node:inspector/promises";
import { setFlagsFromString } from "node:v8";
import { expect, test } from "vitest";
import type { Place } from "../../src/client";
import { file, memory, START } from "./tasks";

const RANDOMNESS = Uint8Array.from({ length: 208 }, (_, i) => i);

// V8 counts calls only of what it interprets.
for (const compiler of ["sparkplug", "maglev", "opt"]) setFlagsFromString(`--no-${compiler}`);
const session = new Session();
session.connect();
await session.post("Profiler.enable");
await session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: true });
const { report } = await import("../../src/client");

/** Returns how often each block of the client and its libraries ran for a report, by V8's counters. */
async function counted(task: Uint8Array, place: Place): Promise<Map<string, number>> {
  await session.post("Profiler.takePreciseCoverage"); // counts from 0
  await report(task, place, memory(), { now: START, randomness: RANDOMNESS });
  const { result } = await session.post("Profiler.takePreciseCoverage");
  const found = new Map<string, number>();
  for (const { url, functions } of result.filter(({ url }) => /\/src\/client\/|@noble|@hpke/.test(url))) {
    for (const { functionName, ranges } of functions) {
      for (const { startOffset, endOffset, count } of ranges) if (count) found.set(`${url} ${functionName} ${startOffset}-${endOffset}`, count);
    }
  }
  return found;
}

test.each<[string, object, Place[]]>([
  ["a place", { depth: 3 }, [[3, 1.13], [3.13, 1], [3, 1], [3.05, 1.07]].map(([longitude, latitude]) => ({ longitude, latitude }))],
  ["a place in a tree", { depth: 3, tree: ["r0", "r1", "r2", "r3", "r00", "r30", "r001"] }, [[3, 1.13], [3.13, 1], [3.129, 1.129]].map(([longitude, latitude]) => ({ longitude, latitude }))],
  ["weights", { max_value: 5 }, [[[3, 1, 5], [3, 1, 0]], [[3, 1, 0], [3.13, 1.13, 0]], [[3.1, 1.1, 2], [3, 1, 3]]]],
])("the work for a report does not depend on %s", async (_, entries, places) => {
  await report(file(entries), places[0], memory(), { now: START });
  const counts = [];
  for (const place of places) counts.push(await counted(file(entries), place));
  const products = [...counts[0]].filter(([key]) => key.includes("/src/client/field128.ts multiply ")).map(([, count]) => count);
  expect(products[0]).toBeGreaterThan(100); // so the counters count
  for (const one of counts) expect(Object.fromEntries(one)).toEqual(Object.fromEntries(counts[0]));
});
