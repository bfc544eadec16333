import { expect, test } from "vitest";
import { atMost, counted, interval, known, metres, niceStep, notNegative, place, shareWords, significant, within } from "../src/format";
import numbers from "./numbers.json";

test.each(numbers.values as [number, number, string][])("%d with a standard error of %d", (value, stddev, text) => {
  expect(known(value, stddev)).toBe(text);
});

test.each(numbers.intervals as [number, number, number, string, string, string][])("%d in %d to %d, ends rounded outward", (value, low, high, text, least, most) => {
  expect(within(value, low, high)).toBe(text);
  expect(interval(low, high)).toBe(`${least} to ${most}`);
});

test.each(numbers.counted as [number, number, string][])("%d users, margin of %d", (users, stddev, text) => {
  expect(counted(users, stddev)).toBe(text);
});

test("a negative number of users is shown as 0 with an upper bound", () => {
  for (const [value, low, high, ...shown] of numbers.not_negative) expect(notNegative(value, low, high)).toEqual(shown);
  expect([atMost(-300, -100), atMost(3, 9.04), atMost(3, 1234), atMost(0, 0.03)]).toEqual(["200", "9.1", "1,300", "0.1"]);
});

test("a share has as many digits as its interval asks for", () => {
  expect(shareWords(0.123, 0.0905, 0.1496)).toBe("12% (9% to 15%)");
  expect(shareWords(0.00234, 0.0021, 0.0026)).toBe("0.23% (0.21% to 0.26%)");
});

test("lengths and places", () => {
  expect(metres(1234)).toBe("1.23 km");
  expect(metres(0.5)).toBe("50 cm");
  expect(place(-3.0654321, 1.0654321, 14)).toBe("1.0654° N, 3.0654° W");
  expect([3, 0.13, 70].map(niceStep)).toEqual([5, 0.2, 100]);
  expect(significant(0.00012345)).toBe("0.000123");
});
