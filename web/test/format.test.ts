import { expect, test } from "vitest";
import { interval, known, metres, niceStep, place, shareWords, significant } from "../src/format";

test("a number is rounded to the first digit of its margin", () => {
  expect(known(319_942, 812)).toBe("319,900");
  expect(known(319_942, 4_000)).toBe("320,000");
  expect(known(0.123456, 0.004)).toBe("0.123");
  expect(known(-12.3, 2)).toBe("−12");
  expect(known(-0.2, 3)).toBe("0");
});

test("the ends of an interval are rounded outward", () => {
  expect(interval(319_134, 320_752)).toBe("319,100 to 320,800");
  expect(interval(9.91, 10.04)).toBe("9.91 to 10.04");
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
