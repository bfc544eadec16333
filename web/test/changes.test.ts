// The page must find the changes that an oracle finds pixel by pixel (tests/jobs/release/page_changes.py).
import { describe, expect, it } from "vitest";
import { changeLayer, compare, qValues, RATE, tails } from "../src/timeline/changes";
import type { NightMap } from "../src/views";
import file from "./changes.json";

const SIDE = 16;
type Row = [pixel: number, pixels: number, before: number, after: number, z: number, q: number | null];
const pairs = file as unknown as { nights: [NightMap, NightMap]; changes: Row[] }[];

describe.each(pairs.map((pair, i) => [i, pair] as const))("pair %i", (_, { nights: [a, b], changes }) => {
  const found = compare(a, b);
  const layer = changeLayer(found, "change");
  /** The last, and so finest, cell over a pixel. */
  const cellAt = (pixel: number): number => layer.level.findLastIndex((level, i) => {
    const wide = SIDE / 2 ** level;
    return Math.floor((pixel % SIDE) / wide) === layer.x[i] && Math.floor(pixel / SIDE / wide) === layer.y[i];
  });

  it("has the cells that both nights have", () => {
    expect(found.length).toBe(changes.length);
    expect(new Set(changes.map(([pixel]) => cellAt(pixel))).size).toBe(changes.length);
    for (const [pixel, pixels] of changes) expect(layer.area[cellAt(pixel)] * (SIDE / 2 ** layer.level[cellAt(pixel)]) ** 2).toBeCloseTo(pixels, 4);
  });

  it("has their shares, z-values and q-values", () => {
    for (const [pixel, , before, after, z, q] of changes) {
      const cell = found[cellAt(pixel)];
      expect(cell.before).toBeCloseTo(before, 8);
      expect(cell.after).toBeCloseTo(after, 8);
      expect(cell.z).toBeCloseTo(z, 6);
      if (q === null || cell.q === null) expect(cell.q).toBe(q);
      else expect(Math.abs(cell.q - q)).toBeLessThan(0.01 * q + 1e-9);
      expect(cell.changed).toBe(q !== null && q <= RATE);
    }
  });

  it("hatches all others, and lists the surest first", () => {
    const { uncertain, listed } = layer.measures[0];
    expect(uncertain).toEqual(found.map(({ changed }) => !changed));
    expect(listed.length).toBe(found.filter(({ changed }) => changed).length);
    const sure = listed.map(([, difference, low, high]) => Math.abs(difference) - (high - low) / 2);
    expect(sure).toEqual([...sure].sort((one, two) => two - one));
  });
});

it("the pairs test the script", () => {
  const all = pairs.flatMap(({ changes }) => changes);
  expect(all.filter(([, , , , , q]) => q === null).length).toBeGreaterThan(5);
  expect(all.filter(([, , , , , q]) => q !== null && q <= RATE).length).toBeGreaterThan(5);
  expect(all.filter(([, , , , , q]) => q !== null && q > RATE).length).toBeGreaterThan(20);
});

it("a night did not change from itself", () => {
  const [a] = pairs[0].nights;
  expect(compare(a, a).filter(({ changed }) => changed)).toEqual([]);
});

it("q-values are those of Benjamini and Hochberg", () => {
  // scipy.stats.false_discovery_control([0.01, 0.04, 0.03, 0.5, 0.002])
  const wanted = [0.025, 0.05, 0.05, 0.5, 0.01];
  qValues([0.01, 0.04, 0.03, 0.5, 0.002]).forEach((q, i) => expect(q).toBeCloseTo(wanted[i], 12));
  expect(qValues([])).toEqual([]);
});

it("tails without heavy noise are the normal law's", () => {
  for (const [z, p] of [[0, 1], [1.959964, 0.05], [4, 6.334e-5], [6, 1.973e-9]]) {
    expect(tails(1e6)(z, 0.5) / p).toBeCloseTo(1, 3);
    expect(tails(3)(z, 0) / p).toBeCloseTo(1, 3); // no noise at all
  }
  expect(tails(3)(4, 1)).toBeGreaterThan(3e-4); // heavier
});

it("cells that the last sub-query did not measure count in the node around them", () => {
  const ids = ["r0", "r1", "r2", "r30", "r31", "r32", "r33"];
  const night = (inner: number): NightMap => ({
    ...pairs[0].nights[0], users: [50, 60, 70, 10, 20, 30, 40], stddev: ids.map(() => 1), measured: [1, 1, 1, inner, inner, inner, inner],
    layer: { ...pairs[0].nights[0].layer, cell_id: ids, level: ids.map((id) => id.length - 1), area: ids.map(() => 1) },
  });
  expect(compare(night(2), night(2)).map(({ id }) => id)).toEqual(["r0", "r1", "r2", "r30", "r31", "r32", "r33"]);
  const found = compare(night(1), night(2));
  expect(found.map(({ id }) => id)).toEqual(["r0", "r1", "r2", "r3"]);
  expect(found[3].before).toBeCloseTo(100 / 280, 12);
});
