// Which flows begin or end in a cell, and what is said of them.
import { describe, expect, it } from "vitest";
import { cellBounds, cellName, cellOf, flowsOf, headOf, middleOf, outlineOf, tripWords } from "../src/products/flows";
import type { FlowTable, MapBody } from "../src/views";

const flows: FlowTable = {
  level: [2, 3, 2], origin_x: [1, 2, 0], origin_y: [1, 3, 0], destination_x: [0, 1, 1], destination_y: [0, 1, 1], trips: [9, 5, 2], low: [7, 3, 1], high: [11, 7, 4],
  centres: null,
};

describe("flows of a cell", () => {
  it("begin in it, also those of finer cells", () => expect(flowsOf(flows, 1, { level: 2, x: 1, y: 1 })).toEqual([0, 1]));
  it("end in it", () => expect(flowsOf(flows, 2, { level: 2, x: 0, y: 0 })).toEqual([0, 1]));
  it("are all without a cell", () => {
    expect(flowsOf(flows, 1, null)).toEqual([0, 1, 2]);
    expect(flowsOf(flows, 0, { level: 2, x: 1, y: 1 })).toEqual([0, 1, 2]);
  });
  it("of coarser pairs are not told by a finer cell", () => expect(flowsOf(flows, 1, { level: 3, x: 2, y: 3 })).toEqual([1]));
});

describe("words", () => {
  it("have the digits that are known", () => expect(tripWords(109.2, 106, 112)).toEqual(["about 109 trips", "106 to 112, 95% interval"]));
  it("are never below 0", () => expect(tripWords(-12.4, -30.2, 5.4)).toEqual(["about 0 trips", "0 to 18, 95% interval"]));
  it("name large cells by column and row", () => expect([cellName(0, 0), cellName(3, 1), cellName(26, 0)]).toEqual(["A1", "D2", "AA1"]));
});

it("a cell's bounds count rows from the north", () => {
  expect(cellBounds({ west: 0, south: 0, east: 4, north: 4 }, 2, 1, 0)).toEqual({ west: 1, south: 3, east: 2, north: 4 });
});

describe("zones", () => {
  const ring: [number, number][] = [[0, 0], [1, 0], [1, 3]];
  const layer = { level: [0, 0, 0], x: [0, 0, 0], y: [0, 0, 0], shapes: [[ring], [ring], [ring.map(([x, y]): [number, number] => [x + 2, y])]] };
  const map = { region: { west: 0, south: 0, east: 4, north: 4 }, layers: [layer] } as unknown as MapBody;
  const between: FlowTable = { ...flows, level: [0, 0, 0], origin_x: [2, 1, 2], origin_y: [0, 0, 0], destination_x: [0, 2, 2], destination_y: [0, 0, 0], centres: [[0.5, 1], [0.6, 1], [2.5, 1]] };
  it("are the rows of the map", () => expect(flowsOf(between, 1, cellOf(map, 2))).toEqual([0, 2]));
  it("have their own borders and points", () => {
    expect(outlineOf(map, cellOf(map, 2))).toEqual([[[2, 0], [3, 0], [3, 3]]]);
    expect(middleOf({ map, flows: between }, cellOf(map, 2))).toEqual([2.5, 1]);
  });
});

it("an arrowhead ends at its tip and is symmetric about its way", () => {
  const [tip, left, right] = headOf([0, 0], [10, 0], 2);
  expect(tip).toEqual([10, 0]);
  expect(left[0]).toBeLessThan(10);
  expect([left[0], left[1]]).toEqual([right[0], -right[1]]);
  expect(headOf([3, 3], [3, 3], 1).flat().every(Number.isFinite)).toBe(true);
});
