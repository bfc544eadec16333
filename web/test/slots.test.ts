import { expect, test } from "vitest";
import { profileOf, slotWords } from "../src/map/slots";
import type { Layer, Measure, TimeSlots } from "../src/views";

const scale = { kind: "log", low: 0, high: 10, knee: 1, unit: "users per km²", ticks: [] } as Measure["scale"];
const measure = (name: string, value: number[], low: number[], high: number[]): Measure =>
  ({ name, kind: "count", unit: "users", value, low, high, uncertain: value.map(() => false), smooth: false, scale, listed: [], listed_note: "" });
const layer: Layer = { title: "By hours", note: "", level: [1, 1], x: [0, 1], y: [0, 0], area: [1, 1], cell_id: ["r0", "r1"], shapes: null, zones: null, named: false, noun: "cell", radius: null,
  measures: [measure("Users, 00-12 h", [3, 20], [0, 12], [9, 28]), measure("Users, 12-24 h", [7, 1], [2, 0], [14, 6])] };
const slots: TimeSlots = { title: "By hours", note: "", names: ["00-12 h", "12-24 h"], ticks: [[0, "00"], [1, "12"], [2, "24"]], layer, region: [[23, 15, 31], [8, 3, 13]] };

test("a profile is of a place, or of the region for no place", () => {
  expect(profileOf(slots, 0)).toEqual([[3, 0, 9], [7, 2, 14]]);
  expect(profileOf(slots, 1)).toEqual([[20, 12, 28], [1, 0, 6]]);
  expect(profileOf(slots, -1)).toEqual([[23, 15, 31], [8, 3, 13]]);
});

test("a slot that noise could explain may be empty", () => {
  expect(slotWords([20, 12, 28])).toEqual(["about 20 users", "12 to 28, 95% interval for this slot only (pointwise)"]);
  expect(slotWords([3, 0, 9])[0]).toBe("at most about 9 users");
  expect(slotWords([3, 0, 9])[1]).toContain("may be empty");
});
