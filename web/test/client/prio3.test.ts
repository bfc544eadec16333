// @vitest-environment node
/// <reference types="node" />
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { bestChunkLength, Histogram, L1BoundSum } from "../../src/client/circuits";
import { toBytes } from "../../src/client/field128";
import { Prio3, Xof } from "../../src/client/prio3";

const DATA = process.env.SFUMATO_DATA;
const bytes = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, "hex"));
const hex = (found: Uint8Array): string => Buffer.from(found).toString("hex");
// eslint-disable-next-line @typescript-eslint/no-explicit-any
const vector = (name: string): any => JSON.parse(readFileSync(`${DATA}/vdaf/${name}.json`, "utf8"));

test.skipIf(!DATA).each(["Prio3Histogram_0", "Prio3Histogram_1", "Prio3Histogram_2", "Prio3L1BoundSum_0"])("shares of the draft's vector %s (of SFUMATO_DATA)", (name) => {
  const given = vector(name);
  const { length, chunk_length, max_value } = given;
  const circuit = max_value === undefined ? new Histogram(length, chunk_length) : new L1BoundSum(length, max_value, chunk_length);
  const prio3 = new Prio3(circuit, bytes(given.ctx), given.shares);
  expect(given.reports.length).toBeGreaterThan(0);
  for (const report of given.reports) {
    const shares = prio3.shard(report.measurement, bytes(report.nonce), bytes(report.rand));
    expect(hex(shares.public)).toBe(report.public_share);
    expect([shares.leader, ...shares.helpers].map(hex)).toEqual(report.input_shares);
  }
});

test.skipIf(!DATA)("the draft's stream (of SFUMATO_DATA)", () => {
  const given = vector("XofTurboShake128");
  const stream = (): Xof => new Xof(bytes(given.seed), bytes(given.dst), bytes(given.binder));
  expect(hex(stream().read(32))).toBe(given.derived_seed);
  expect(hex(toBytes(stream().elements(given.length)))).toBe(given.expanded_vec_field128);
});

test("the chunks with the shortest proofs", () => {
  expect([1, 340, 1024, 3034].map(bestChunkLength)).toEqual([1, 23, 34, 49]);
});
