// What range queries, comparisons and timelines say and find.
import { describe, expect, it } from "vitest";
import { amount, Methods } from "../src/products/comparison";
import { answerWords, roundedSquare, squareOf } from "../src/products/ranges";
import { earlier, nightsChart, rowOf, usersOf } from "../src/products/timeline";
import type { ComparisonBody, MethodRow, Night } from "../src/views";

describe("an answer in words", () => {
  it("has the digits that are known", () => {
    expect(answerWords({ users: 1234.4, stddev: 52, inside: 1 }, false)).toEqual(["about 1,200 users", "1,100 to 1,400, 95% interval", ""]);
    expect(answerWords({ users: 1234.4, stddev: 52, inside: 1 }, true)[1]).toContain("the true interval may be wider");
  });
  it("is a bound where nobody may be there", () => {
    expect(answerWords({ users: 3, stddev: 10, inside: 1 }, false)[0]).toBe("no more than about 23 users");
  });
  it("says what of a square lies in the region", () => {
    expect(answerWords({ users: 50, stddev: 2, inside: 0.25 }, false)[2]).toBe("Of this square, 25% lies in the region; the answer is of that part.");
    expect(answerWords({ users: 0, stddev: 0, inside: 0 }, false)[2]).toContain("outside the region");
  });
});

describe("a square in a link", () => {
  it("comes back as it was", () => {
    const square = roundedSquare(-122.45979249, 37.78395831, 1234.5);
    expect(square).toEqual({ x: -122.459792, y: 37.783958, size: 1230 });
    expect(squareOf(`${square.x}/${square.y}/${square.size}`)).toEqual(square);
  });
  it.each([null, "", "1/2", "1/2/3/4", "x/2/3", "181/0/5", "0/91/5", "0/0/0", "0/0/-5", "0/0/1e12", "NaN/NaN/NaN"])("that names none is none: %s", (text) => {
    expect(squareOf(text)).toBe(null);
  });
});

const row = (method: string, options: MethodRow["options"], mse: number | null, isPrivate = true): MethodRow => ({
  method, private: isPrivate, options, texts: Object.fromEntries(Object.entries(options).map(([name, value]) => [name, String(value)])), metrics: { mse: [mse, 0.1, String(mse)] }, picture: null,
});
const body = {
  kind: "comparison", shared: ["users"], own: ["calibration"], metrics: [{ name: "mse", help: "", better: "lower" }],
  rows: [
    row("best_level", { users: 10 }, 1, false), row("best_level", { users: 9 }, 1, false),
    row("emd", { users: 10 }, 5), row("emd (level by truth)", { users: 10 }, 4, false), row("flat", { users: 10 }, null),
    row("adaptive", { users: 10, calibration: 0.1 }, 2), row("adaptive", { users: 10, calibration: 0.2 }, 3), row("adaptive", { users: 9, calibration: 0.1 }, 7),
  ],
} as unknown as ComparisonBody;

describe("methods of a comparison", () => {
  const methods = new Methods(body);
  it("stand private first, and by the metric", () => {
    const ranked = methods.ranked({ users: 10, calibration: 0.1 }, 0);
    expect(ranked.map(({ method }) => method)).toEqual(["adaptive", "emd", "flat", "best_level", "emd (level by truth)"]);
    expect(ranked[0].row?.metrics.mse[0]).toBe(2);
    expect(methods.ranked({ users: 9, calibration: 0.2 }, 0)[0].row).toBe(undefined); // adaptive was not run there
  });
  it("have choices in ascending order", () => {
    expect(methods.choices.get("users")?.map(({ value }) => value)).toEqual([9, 10]);
    expect(methods.words({ users: 10, calibration: 0.1 })).toBe("users 10, calibration 0.1");
  });
  it("are found along an option that is free", () => {
    expect(methods.rows("adaptive", { users: 10, calibration: 0.1 }, "calibration").length).toBe(2);
    expect(methods.rows("adaptive", { users: 10, calibration: 0.1 }, "users").map((one) => one.options.users)).toEqual([10, 9]);
  });
  it("look like themselves where they chose by the truth", () => {
    expect(methods.style("emd (level by truth)")).toBe(`${methods.style("emd")} lead`);
    expect(methods.style("best_level")).toBe("mark lead");
  });
});

it.each([[0, "0"], [0.25, "0.25"], [3.87e-11, "3.9e-11"], [1e-10, "1e-10"], [120_000, "120,000"]])("%s is written out as %s", (value, text) => {
  expect(amount(value)).toBe(text);
});

describe("nights", () => {
  const night = (date: string, map = true): Night => ({ date, release_id: date, folder: date, job: "heatmap", epsilon: 1, delta: 0, users: 100, users_stddev: null, warm_start: null, map: map ? `${date}.js` : null, safe: true, pruned: false, notes: [], rests_on: [], changes: [] });
  const nights = [night("2026-11-01"), night("2026-11-02", false), night("2026-11-07"), night("2026-11-08")];
  it("are compared with the last that has a map and is early enough", () => {
    expect(earlier(nights, nights[3], 1)).toBe(nights[2]);
    expect(earlier(nights, nights[3], 7)).toBe(nights[0]);
    expect(earlier(nights, nights[2], 5)).toBe(nights[0]); // not the one without a map
    expect(earlier(nights, nights[0], 1)).toBe(null);
  });
  it("have users with the digits that are known", () => {
    expect(usersOf({ users: 74_246.9, users_stddev: 2080 })).toBe("74,000 users (± 4,100, 95%)");
    expect(usersOf({ users: 74_246.9, users_stddev: null })).toBe("74,247 users");
    expect(usersOf({ users: null, users_stddev: null })).toBe(null);
  });
  it("have a bar each, in colours that name A and B", () => {
    const { marks } = nightsChart(nights, [nights[0], nights[3]]);
    const bars = marks[0].kind === "bars" ? marks[0].bars : [];
    expect(bars.map(([, , , style]) => style)).toEqual(["s1", "s5", "s5", "s0"]);
    expect(bars.every(([from, to]) => to - from < 86_400_000)).toBe(true);
  });
  it("on which B rests have a colour and a key", () => {
    const last: Night = { ...nights[3], rests_on: [["2026-10-02", "2026-11-01"], ["2026-11-07", "2026-11-08"]] };
    const shown = [...nights.slice(0, 3), last];
    const colours = (chosen: (Night | null)[]): (string | undefined)[] => nightsChart(shown, chosen).marks.flatMap((mark) => (mark.kind === "bars" ? mark.bars.map(([, , , style]) => style) : []));
    expect(colours([null, last])).toEqual(["s2", "s5", "s2", "s0"]);
    expect(colours([shown[2], last])).toEqual(["s2", "s5", "s1", "s0"]);
    expect(colours([null, shown[2]])).toEqual(["s5", "s5", "s0", "s5"]);
    expect(nightsChart(shown, [null, last]).keys?.map(([style]) => style)).toEqual(["s0", "s2", "s5"]);
    expect(nightsChart(shown, [null, shown[2]]).keys?.map(([style]) => style)).toEqual(["s0", "s5"]);
    expect(nightsChart([last], [null, last]).keys?.map(([style]) => style)).toEqual(["s0"]);
  });
});

it("a place is shown by its cell, the smallest one around it, or one inside it", () => {
  const ids = ["r0", "r02", "r1", "r31", "r32"];
  expect(["r02", "r021", "r0213", "r03", "r1", "r3"].map((id) => rowOf(ids, id))).toEqual([1, 1, 1, 0, 2, 3]);
  expect(rowOf(ids, "r2")).toBe(null);
  expect(rowOf(["r", "r2"], "r21")).toBe(1);
});
