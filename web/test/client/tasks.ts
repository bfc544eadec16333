/** A task for tests, and a memory that holds what a phone answered. */
import type { Memory } from "../../src/client";

export const START = Date.UTC(2026, 10, 20) / 1000;
export const END = START + 86_400;

export const CONTENT = {
  format: "sfumato split task 1",
  name: "a day",
  region: [3.0, 1.0, 3.13, 1.13],
  depth: 2,
  epsilon: 1.0,
  min_batch: 200,
  start: "2026-11-20T00:00:00+00:00",
  end: "2026-11-21T00:00:00+00:00",
  leader: "afd17c19bd41873867f5ffbaa83307ea2480f1e00665fa3d0119fdd3f250c90a",
  helper: "4c122f2c0b59278377c17b03166a947ed8ad45822ca6ef3cc66d3fc95e103413",
  collector: "1ebdad1dbb6bbb44621165987dfb57b85088c80f9dad14b0f3b388060793f566",
  verify: "8a46fc2bfaf0260430369aaa327d8761a28aaec4eb13cab4c78ffa22a9ff1402",
};

export const file = (entries: object = {}): Uint8Array => new TextEncoder().encode(JSON.stringify({ ...CONTENT, ...entries }));

/** The storage of a new phone. */
export function memory(): Memory & { kept: Map<string, string> } {
  const kept = new Map<string, string>();
  return { kept, getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => void kept.set(key, value) };
}
