// @vitest-environment node
import { expect, test } from "vitest";
import { type Elements, fromNumbers, fromWords, isCanonical, LIMBS, MODULUS, multiply, OddPoints, settle, subtract, toBytes, zeros } from "../../src/client/field128";
import { Xof } from "../../src/client/prio3";

const EDGES = [0n, 1n, 2n, 7n, MODULUS - 1n, MODULUS - 2n, MODULUS / 2n, ...[21n, 22n, 43n, 44n, 64n, 65n, 66n, 88n, 110n, 127n].flatMap((bit) => [2n ** bit, 2n ** bit - 1n, MODULUS - 2n ** bit])];

function numbers(elements: Elements): bigint[] {
  const bytes = toBytes(elements);
  return Array.from({ length: elements.length / LIMBS }, (_, i) => bytes.subarray(16 * i, 16 * i + 16).reduceRight((value, byte) => 256n * value + BigInt(byte), 0n));
}

/** Numbers of a fixed generator. */
function drawn(count: number): bigint[] {
  let state = 1n;
  return Array.from({ length: count }, () => (state = (state * 0x2360ed051fc65da44385df649fccf645n + 0x5851f42d4c957f2d14057b7ef767814fn) % 2n ** 128n) % MODULUS);
}

const modulo = (value: bigint): bigint => ((value % MODULUS) + MODULUS) % MODULUS;

test("products and differences are those of whole numbers modulo p", () => {
  const all = [...EDGES, ...drawn(60)];
  const [elements, product] = [fromNumbers(all), zeros(1)];
  expect(numbers(elements)).toEqual(all);
  let most = 0;
  for (let i = 0; i < all.length; i++) {
    const [found, expected]: bigint[][] = [[], []];
    for (let j = 0; j < all.length; j++) {
      multiply(product, 0, elements, LIMBS * i, elements, LIMBS * j);
      most = Math.max(most, ...product.map(Math.abs));
      const difference = fromNumbers([all[i]]);
      subtract(difference, fromNumbers([all[j]]));
      found.push(...numbers(product), ...numbers(difference));
      expected.push((all[i] * all[j]) % MODULUS, modulo(all[i] - all[j]));
    }
    expect(found).toEqual(expected);
  }
  expect(most).toBeLessThanOrEqual(2 ** 21 + 2 ** 15);
});

test("a sum of the most elements that a measurement has is exact, with limbs as large as they can be", () => {
  for (const sign of [1, -1]) {
    const sum = new Float64Array(LIMBS).fill(sign * 2 ** 22 * (2 ** 21 + 2 ** 15));
    const value = sum.reduceRight((total, limb) => total * 2n ** 22n + BigInt(limb), 0n);
    settle(sum, 0);
    expect(numbers(sum)[0]).toBe(modulo(value));
  }
});

test("16 bytes at or above the modulus encode no element, and a stream skips them", () => {
  const values = [5n, MODULUS, 7n, 2n ** 128n - 1n, MODULUS - 1n, MODULUS + 9n, 11n, 13n];
  const words = Uint32Array.from(values.flatMap((value) => [0n, 32n, 64n, 96n].map((bit) => Number((value >> bit) & 0xffffffffn))));
  expect(values.map((_, i) => isCanonical(words, 4 * i))).toEqual(values.map((value) => value < MODULUS));
  class Given extends Xof {
    private at = 0;
    override read(size: number): Uint8Array {
      return new Uint8Array(words.buffer).slice(this.at, (this.at += size));
    }
  }
  expect(numbers(new Given(new Uint8Array(32), new Uint8Array()).elements(5))).toEqual([5n, 7n, MODULUS - 1n, 11n, 13n]);
  expect(numbers(fromWords(words.subarray(0, 4)))).toEqual([5n]);
});

test.each([2, 4, 32])("values of a polynomial at the odd roots of order %d", (order) => {
  const power = (base: bigint, exponent: number): bigint => Array.from({ length: exponent }).reduce<bigint>((found) => (found * base) % MODULUS, 1n);
  let root = 7n; // of twice the order
  for (let bit = 2n * BigInt(order), exponent = (MODULUS - 1n) / bit, square = root, found = 1n; ; exponent >>= 1n, square = (square * square) % MODULUS) {
    if (exponent === 0n) {
      root = found;
      break;
    }
    if (exponent & 1n) found = (found * square) % MODULUS;
  }
  const coefficients = drawn(order);
  const at = (point: bigint): bigint => coefficients.reduceRight((value, one) => (value * point + one) % MODULUS, 0n);
  const values = fromNumbers([0n, ...Array.from({ length: order }, (_, k) => at(power(root, 2 * k)))]);
  new OddPoints(order).move(values, LIMBS);
  expect(numbers(values)).toEqual([0n, ...Array.from({ length: order }, (_, k) => at(power(root, 2 * k + 1)))]);
});
