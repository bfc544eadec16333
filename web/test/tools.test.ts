// What range queries and timelines say and find.
import { describe, expect, it } from "vitest";
import { answerWords, roundedSquare, squareOf } from "../src/products/ranges";
import { earlier, nightsChart, rowOf, usersOf } from "../src/products/timeline";
import type { Night } from "../src/views";

describe("an answer in words", () => {
  it("has the digits that are known", () => {
    expect(answerWords({ users: 1234.4, stddev: 52, inside: 1 }, false)).toEqual(["about 1,230 users", "1,130 to 1,340, 95% interval", ""]);
    expect(answerWords({ users: 1234.4, stddev: 52, inside: 1 }, true)[1]).toContain("the true interval may be wider");
  });
  it("is a bound where nobody may be there", () => {
    expect(answerWords({ users: 3, stddev: 10, inside: 1 }, false)[0]).toBe("at most about 23 users");
  });
  it("says what of a square lies in the region", () => {
    expect(answerWords({ users: 50, stddev: 2, inside: 0.25 }, false)[2]).toBe("25% of this square lies in the region; the answer covers only that part.");
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
    expect(usersOf({ users: 74_246.9, users_stddev: 2080 })).toBe("74,000 users (± 4,400, 95%)");
    expect(usersOf({ users: 74_246.9, users_stddev: null })).toBe("74,247 users");
    expect(usersOf({ users: null, users_stddev: null })).toBe(null);
  });
  it("have a bar each, in colours of the two that are compared", () => {
    const { marks } = nightsChart(nights, [nights[0], nights[3]]);
    const bars = marks[0].kind === "bars" ? marks[0].bars : [];
    expect(bars.map(([, , , style]) => style)).toEqual(["s1", "s5", "s5", "s0"]);
    expect(bars.every(([from, to]) => to - from < 86_400_000)).toBe(true);
  });
  it("are named by their dates", () => {
    expect(nightsChart(nights, [nights[0], nights[3]]).keys?.map(([, text]) => text)).toEqual(["8 Nov 2026", "1 Nov 2026, compared", "other days"]);
  });
  it("have, for a zone, its own counts and intervals, and none where it is unknown", () => {
    const counts = [{ users: 40, low: 12, high: 55 }, null, { users: 0, low: 0, high: 9 }, { users: 70, low: 60, high: 80 }];
    const { marks, y } = nightsChart(nights, [null, nights[3]], "Quay", counts);
    expect(marks.flatMap((mark) => (mark.kind === "bars" ? mark.bars.map(([, , users]) => users) : []))).toEqual([40, 0, 0, 70]);
    expect(marks.flatMap((mark) => (mark.kind === "upright" ? mark.points.map(([, low, high]) => [low, high]) : []))).toEqual([[12, 55], [0, 9], [60, 80]]);
    expect(y.label).toBe("Users in Quay");
  });
  it("that another is based on have a colour and a key", () => {
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
