/** What a phone proves about its measurement (VDAF draft, Section 7.3), as transforms/split/circuits.py states it. */
import { RequestError } from "./errors";
import { type Elements, LIMBS, multiply, OddPoints, settle, zeros } from "./field128";

const MAX_LENGTH = 1 << 20; // of an encoded measurement
const bitLength = (value: number): number => 32 - Math.clz32(value);

/** Returns the chunk length with the shortest proof; the shorter chunk where two are equal. */
export function bestChunkLength(measurementLength: number): number {
  let [best, shortest] = [0, Infinity];
  for (let bits = bitLength(measurementLength); bits >= 1; bits--) {
    const most = 2 ** bits - 1;
    const chunk = Math.ceil(measurementLength / most);
    if (2 * chunk + 2 * most < shortest) [best, shortest] = [chunk, 2 * chunk + 2 * most];
  }
  return best;
}

/**
 * A circuit over Field128: every entry of an encoded measurement is 0 or 1, and a weighted sum of them has one value.
 *
 * Entries are checked in chunks by one gadget, a parallel sum of products. A proof holds its polynomial.
 */
export abstract class Circuit {
  /** Codepoint of the VDAF. */
  abstract readonly id: number;
  readonly chunk: number;
  /** Calls of the gadget, and elements of joint randomness. */
  readonly calls: number;
  /** Elements of prover randomness. */
  readonly wires: number;
  readonly proofLength: number;
  private readonly odd: OddPoints;

  /** Raises RequestError: `length` entries, encoded in `measurementLength` zeros and ones, are too many. */
  constructor(readonly length: number, readonly measurementLength: number, chunkLength?: number) {
    if (!(length >= 1 && measurementLength <= MAX_LENGTH)) {
      throw new RequestError(`length: an encoded measurement must have between 1 and ${MAX_LENGTH.toLocaleString("en")} entries`);
    }
    this.chunk = chunkLength ?? bestChunkLength(measurementLength);
    this.calls = Math.ceil(measurementLength / this.chunk);
    this.wires = 2 * this.chunk;
    const order = 2 ** bitLength(this.calls); // points of a wire's polynomial
    this.proofLength = this.wires + 2 * order - 1;
    this.odd = new OddPoints(order);
  }

  /** Returns the zeros and ones of a measurement by the same work for every value. Raises RequestError. */
  abstract encode(measurement: number | readonly number[]): Elements;

  /** Returns a proof. randomness: `wires` elements; joint: `calls` elements. */
  prove(measurement: Elements, randomness: Elements, joint: Elements): Elements {
    const { chunk, calls } = this;
    const { order } = this.odd;
    const [first, second, powers, product] = [zeros(order), zeros(order), joint.slice(), zeros(1)];
    const proof = zeros(this.wires + 2 * order); // the gadget's polynomial at the roots of twice the order
    proof.set(randomness);
    const padded = zeros(calls * chunk);
    padded.set(measurement);
    const addProducts = (parity: number): void => {
      for (let k = 0; k < order; k++) {
        multiply(product, 0, first, LIMBS * k, second, LIMBS * k);
        for (let limb = 0; limb < LIMBS; limb++) proof[LIMBS * (this.wires + 2 * k + parity) + limb] += product[limb];
      }
    };
    for (let j = 0; j < chunk; j++) {
      first.fill(0).set(randomness.subarray(LIMBS * 2 * j, LIMBS * (2 * j + 1)));
      second.fill(0).set(randomness.subarray(LIMBS * (2 * j + 1), LIMBS * (2 * j + 2)));
      for (let k = 0; k < calls; k++) {
        const [entry, wire] = [LIMBS * (k * chunk + j), LIMBS * (k + 1)];
        multiply(first, wire, powers, LIMBS * k, padded, entry); // joint^(j + 1) times the entry
        multiply(powers, LIMBS * k, powers, LIMBS * k, joint, LIMBS * k);
        for (let limb = 0; limb < LIMBS; limb++) second[wire + limb] = padded[entry + limb];
        second[wire] -= 1;
      }
      addProducts(0);
      this.odd.move(first, 0);
      this.odd.move(second, 0);
      addProducts(1);
    }
    for (let at = LIMBS * this.wires; at < proof.length; at += LIMBS) settle(proof, at);
    return proof.subarray(0, LIMBS * this.proofLength);
  }
}

/** Exactly one of `length` entries is 1: a phone counts in one cell (Prio3Histogram). */
export class Histogram extends Circuit {
  readonly id = 4;

  constructor(length: number, chunkLength?: number) {
    super(length, length, chunkLength);
  }

  encode(measurement: number | readonly number[]): Elements {
    if (typeof measurement !== "number" || !Number.isInteger(measurement) || measurement < 0 || measurement >= this.length) {
      throw new RequestError(`cell: must be a whole number between 0 and ${this.length - 1}`);
    }
    const entries = zeros(this.length);
    for (let i = 0; i < this.length; i++) entries[LIMBS * i] = isEqual(i, measurement);
    return entries;
  }
}

/**
 * Whole numbers whose sum is at most `maxValue` (Prio3L1BoundSum): a phone spreads a weight over entries.
 *
 * Every number, and their sum at the end, is encoded in bits; the last bit's weight makes `maxValue` the largest.
 */
export class L1BoundSum extends Circuit {
  readonly id = 7;

  constructor(length: number, readonly maxValue: number, chunkLength?: number) {
    super(length, (length + 1) * bitLength(maxValue), chunkLength);
  }

  encode(measurement: number | readonly number[]): Elements {
    if (typeof measurement === "number" || measurement.length !== this.length || !measurement.every(Number.isInteger)) {
      throw new RequestError(`weights: must be ${this.length} whole numbers`);
    }
    const sum = measurement.reduce((a, b) => a + b, 0);
    if (measurement.some((value) => value < 0) || sum > this.maxValue) {
      throw new RequestError(`weights: must be 0 or more, and ${this.maxValue} at most in sum`);
    }
    const bits = bitLength(this.maxValue) - 1;
    const entries = zeros(this.measurementLength);
    [...measurement, sum].forEach((value, i) => {
      const isLast = value >>> bits; // at most 1
      const rest = value - isLast * (this.maxValue - 2 ** bits + 1);
      for (let bit = 0; bit < bits; bit++) entries[LIMBS * (i * (bits + 1) + bit)] = (rest >>> bit) & 1;
      entries[LIMBS * (i * (bits + 1) + bits)] = isLast;
    });
    return entries;
  }
}

/** Returns 1 where two whole numbers below 2^31 are equal, and 0 otherwise, without a branch. */
export const isEqual = (a: number, b: number): number => 1 - (((a ^ b) | -(a ^ b)) >>> 31);
