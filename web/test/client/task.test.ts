// @vitest-environment node
import { expect, test } from "vitest";
import { type Place, report, RequestError, Task } from "../../src/client";
import { hex } from "../../src/client/task";
import { CONTENT, END, file, memory, START } from "./tasks";

const PLACE = { longitude: 3.05, latitude: 1.07 };
const MAP = { epsilon: 1, users: 1000 };
const TREE = ["r0", "r1", "r2", "r3", "r30", "r31", "r32", "r33"];

/** Returns which entry a refusal is about; null where there was none. */
async function refused(run: () => unknown): Promise<string | null> {
  try {
    await run();
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    return error.option;
  }
  return null;
}

test("a task's id is the hash of its file", async () => {
  const bytes = file({ name: "Köln, 1 ☂ 𝒟" });
  const task = Task.read(bytes);
  expect(hex(task.id)).toBe(hex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes.slice()))));
  expect(task.bytes).toEqual(bytes);
});

test.each<[string, object]>([
  ["name", { name: "" }],
  ["name", { name: "a\nb" }],
  ["name", { name: "a\u200bb" }],
  ["name", { name: "𝒟".repeat(101) }],
  ["name", { name: null }],
  ["epsilon", { epsilon: 0 }],
  ["epsilon", { epsilon: "1" }],
  ["epsilon", { epsilon: 31 }],
  ["epsilon", { epsilon: true }],
  ["epsilon", { epsilon: 3e-6, max_value: 2 }],
  ["depth", { depth: 9 }],
  ["depth", { depth: 1.5 }],
  ["depth", { depth: 16, tree: TREE }],
  ["min_batch", { min_batch: 0 }],
  ["max_value", { max_value: 65_537 }],
  ["region", { region: [3, 1, 3] }],
  ["region:", { region: [3, 1, 2.9, 1.13] }],
  ["region:", { region: [3, 1, 181, 1.13] }],
  ["region", { region: ["3", 1, 3.1, 1.13] }],
  ["start requires", { start: "2026-11-20" }],
  ["start must", { start: "2026-02-30T00:00:00+00:00" }],
  ["start requires", { start: "2026-11-20T00:00:00.5+00:00" }],
  ["start must", { start: 0 }],
  ["start, end", { start: "2026-11-20T00:30:00+00:00" }],
  ["start, end", { end: "2026-11-20T00:00:00Z" }],
  ["leader", { leader: "00" }],
  ["leader", { leader: CONTENT.leader.toUpperCase() }],
  ["leader", { leader: "00".repeat(32) }],
  ["helper", { helper: `ed${"ff".repeat(30)}7f` }],
  ["collector", { collector: "ff".repeat(32) }],
  ["verify", { verify: "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800" }],
  ["leader, helper, collector, verify", { verify: CONTENT.leader }],
  ["tree", { tree: "r0" }],
  ["tree:", { depth: 2, tree: ["r0", "r000"] }],
  ["tree:", { tree: ["r0", "r4"] }],
  ["tree", { tree: ["r1", "r0"] }],
  ["tree", { tree: ["r0", "r0"] }],
  ["tree", { tree: ["r"] }],
  ["tree", { map: MAP }],
  ["map", { map: 1, tree: TREE }],
  ["map.round", { map: { ...MAP, round: 41, spent: 0.1, first: "ab".repeat(32) }, tree: TREE }],
  ["map.spent", { map: { ...MAP, round: 2, first: "ab".repeat(32) }, tree: TREE }],
  ["map.first", { map: { ...MAP, round: 2, spent: 0.1 }, tree: TREE }],
  ["epsilon, map.spent", { map: { ...MAP, epsilon: 0.9 }, tree: TREE }],
])("a task with a wrong entry is refused: %s, %o", (beginning, entries) => {
  expect(() => Task.read(file(entries))).toThrow(RequestError);
  expect(() => Task.read(file(entries))).toThrow(new RegExp(`^(task: )?${beginning.replace(".", "\\.")}`));
});

test("a file that is no task is refused", async () => {
  const missing = { ...CONTENT } as Record<string, unknown>;
  delete missing.verify;
  const files = ["{", "[]", "null", JSON.stringify({ ...CONTENT, format: "sfumato split task 2" }), JSON.stringify({ ...CONTENT, unknown: 1 }), JSON.stringify(missing)];
  for (const text of files) expect(await refused(() => Task.read(new TextEncoder().encode(text)))).toBe("task");
  expect(await refused(() => Task.read(new Uint8Array([0xff])))).toBe("task");
  expect(await refused(() => Task.read(file({ map: { ...MAP, unknown: 1 }, tree: TREE })))).toBe("task");
});

test.each<[number, number, number, number]>([
  [3.0, 1.13, 0, 0],
  [3.001, 1.001, 1, 0],
  [3.129, 1.129, 2, 1],
  [3.07, 1.064, 3, 2],
  [3.07, 1.001, 4, 3],
  [3.129, 1.064, 5, 4],
  [3.13, 1.0, 6, 5],
])("%d, %d belongs to the deepest entry that holds it", (longitude, latitude, entry, partial) => {
  expect(Task.read(file({ tree: TREE })).measurement({ longitude, latitude })).toBe(entry);
  const unlisted = Task.read(file({ tree: TREE.slice(2) })); // the root is the entry of r0 and r1
  expect(unlisted.measurement({ longitude, latitude })).toBe(partial);
  expect(unlisted.prio3.circuit.length).toBe(6);
});

test("reports have one size, and another id each", async () => {
  const places = [PLACE, { longitude: 3, latitude: 1 }, { longitude: 3.13, latitude: 1.13 }];
  const made = await Promise.all(places.map((place) => report(file(), place, memory(), { now: START })));
  expect(new Set(made.map((one) => one.length)).size).toBe(1);
  expect(new Set(made.map((one) => hex(one.subarray(0, 16)))).size).toBe(places.length);
});

test.each<[string, Place]>([
  ["location", { longitude: 2.99, latitude: 1.1 }],
  ["location", { longitude: Number.NaN, latitude: 1.1 }],
  ["weights", [[3.05, 1.07, 4]]],
  ["weights", [[3.05, 1.07, -1], [3.05, 1.07, 0]]],
  ["weights", [[3.05, 1.07, 0.5]]],
])("a wrong %s leaves the task unanswered: %o", async (option, place) => {
  const phone = memory();
  expect(await refused(() => report(file({ max_value: 3 }), place, phone, { now: START }))).toBe(option);
  expect(phone.kept.size).toBe(0);
  expect(await refused(() => report(file({ max_value: 3 }), [[3.05, 1.07, 1], [3.1, 1.1, 2]], phone, { now: START }))).toBeNull();
  expect(await refused(() => report(file(), [[3.05, 1.07, 1]], phone, { now: START }))).toBe("weights");
});

test("a task is answered in its window only, and once, also by two calls at a time", async () => {
  const phone = memory();
  for (const now of [START - 1, END]) expect(await refused(() => report(file(), PLACE, phone, { now }))).toBe("task");
  expect(phone.kept.size).toBe(0);
  const both = [0, 1].map(() => refused(() => report(file(), PLACE, phone, { now: END - 1 })));
  expect(await Promise.all(both)).toEqual([null, "task"]);
  expect(await refused(() => report(file(), PLACE, phone, { now: END - 1 }))).toBe("task");
  expect(await refused(() => report(file({ name: "another" }), PLACE, phone, { now: END - 1 }))).toBeNull();
});

test("a task counts as answered when its report is made, and no report leaves before that is kept", async () => {
  const phone = memory();
  await expect(report(file(), PLACE, phone, { now: START, randomness: new Uint8Array(207) })).rejects.toThrow(RangeError);
  expect(phone.kept.size).toBe(0);
  const full = { getItem: () => null, setItem: () => { throw new Error("full"); } };
  await expect(report(file(), PLACE, full, { now: START })).rejects.toThrow("full");
});

test("rounds of a map are answered in their order, and no old or forged one", async () => {
  const first = file({ epsilon: 0.3, tree: ["r0"], map: MAP });
  const series = Task.read(first).hexId;
  const hours = (a: number, b: number): object => ({ start: `2026-11-${a}T00:00:00+00:00`, end: `2026-11-${b}T00:00:00+00:00` });
  const second = { epsilon: 0.1, tree: TREE, map: { ...MAP, round: 2, spent: 0.3, first: series }, ...hours(21, 22) };
  const third = { ...second, epsilon: 0.6, map: { ...second.map, round: 3, spent: 0.3 + 0.1 }, ...hours(22, 23) };
  const phone = memory();
  const answer = (task: Uint8Array, day: number): Promise<string | null> => refused(() => report(task, PLACE, phone, { now: START + 86_400 * (day - 20) }));
  expect(await answer(file(second), 21)).toBe("task"); // without the first
  expect(await answer(first, 20)).toBeNull();
  const forged = [
    { name: "another" }, { region: [3, 1, 3.13, 1.14] }, { depth: 3 }, { min_batch: 1 }, { leader: CONTENT.verify, verify: CONTENT.leader }, { max_value: 2 },
    { map: { ...second.map, epsilon: 2 } }, { map: { ...second.map, users: 1 } }, { map: { ...second.map, spent: 0.2 } }, { map: { ...second.map, round: 3 } },
    { map: { ...second.map, first: "ab".repeat(32) } }, hours(20, 22), hours(21, 23),
  ];
  for (const entries of forged) expect(await answer(file({ ...second, ...entries }), 21), JSON.stringify(entries)).toBe("task");
  expect(await answer(file(third), 22)).toBe("task"); // the second is left out
  expect(await answer(file(second), 21)).toBeNull();
  for (const task of [first, file(second), file({ ...second, tree: ["r1"] })]) {
    expect(await answer(task, 21)).toBe("task");
    expect(await answer(task, 20)).toBe("task");
  }
  expect(await answer(file(third), 22)).toBeNull();
  expect(phone.kept.size).toBe(1);
});
