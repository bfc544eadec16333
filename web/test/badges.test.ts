import { expect, test } from "vitest";
import { placeBadges, type Spot } from "../src/map/badges";
import type { Box } from "../src/map/ground";
import { overlap } from "../src/map/letters";

const spot = (x: number, y: number, radius = 8): Spot => ({ x, y, box: [x - radius, y - radius, x + radius, y + radius] });
const around = ({ x, y }: { x: number; y: number }): Box => [x - 8.5, y - 8.5, x + 8.5, y + 8.5];

test("a large place has its number in it, a small one beside it at the end of a line", () => {
  const [large, small] = [spot(100, 100, 20), spot(300, 100)];
  const badges = placeBadges([large, small], [small.box], [], 400, 200);
  expect(badges[0]).toEqual({ number: 1, x: 100, y: 100, from: null, name: null });
  expect(badges[1].from).toBe(small);
  expect(overlap(around(badges[1]), small.box)).toBe(false);
});

test("numbers of crowded places cover neither each other nor a place, and only the first are far from theirs", () => {
  const spots = Array.from({ length: 12 }, (_, i) => spot(170 + 15 * (i % 4), 170 + 15 * Math.floor(i / 4)));
  const badges = placeBadges(spots, spots.map(({ box }) => box), [[0, 0, 400, 60]], 400, 400);
  expect(badges.slice(0, 3).map(({ number }) => number)).toEqual([1, 2, 3]);
  expect(badges.length).toBeGreaterThan(4);
  expect(badges.slice(3).every(({ x, y, from }) => Math.hypot(x - (from?.x ?? x), y - (from?.y ?? y)) < 35)).toBe(true);
  badges.forEach((one, i) => {
    expect([...spots.map(({ box }) => box), ...badges.slice(0, i).map(around), [0, 0, 400, 60] as Box].some((other) => overlap(other, around(one)))).toBe(false);
  });
});

test("a name goes next to its number, and is covered by no number, place or line that follows", () => {
  const spots = Array.from({ length: 8 }, (_, i) => ({ ...spot(200 + 30 * (i % 4), 200 + 30 * Math.floor(i / 4)), half: 30 }));
  const badges = placeBadges(spots, spots.map(({ box }) => box), [[0, 0, 400, 120]], 500, 500);
  const names = badges.flatMap(({ name }) => (name ? [name] : []));
  expect(names.length).toBeGreaterThan(3);
  names.forEach((name, i) => {
    expect([...names.slice(0, i), ...badges.map(around), ...spots.map(({ box }) => box)].some((other) => overlap(other, name))).toBe(false);
  });
  expect(badges[0].name?.map((side, i) => Math.abs(side - [badges[0].x, badges[0].y][i % 2]) < 75)).toEqual([true, true, true, true]);
});

test("the first three numbers are shown where there is no room", () => {
  const spots = Array.from({ length: 6 }, (_, i) => spot(100 + i, 100));
  expect(placeBadges(spots, [[0, 0, 200, 200]], [], 200, 200).map(({ number }) => number)).toEqual([1, 2, 3]);
});

test("a place out of sight has no number", () => {
  expect(placeBadges([spot(-5, 50), spot(50, 50)], [], [], 100, 100).map(({ number }) => number)).toEqual([2]);
});
