/** Prio3 (VDAF draft 20, Section 7): shares of a measurement for two aggregators, as transforms/split/prio3.py makes them. */
import { turboshake128 } from "@noble/hashes/sha3-addons.js";
import type { Circuit } from "./circuits";
import { type Elements, ENCODED_SIZE, fromWords, isCanonical, subtract, toBytes } from "./field128";

export const SEED_SIZE = 32;
export const NONCE_SIZE = 16;
const VERSION = 18; // of the format of derived values, which draft 20 keeps
const PROOFS = 1;
const [MEASUREMENT, PROOF, JOINT, PROVE, JOINT_SEED, JOINT_PART] = [1, 2, 3, 4, 6, 7]; // uses of derived values

/** XofTurboShake128 of one seed (VDAF draft, Section 6.2.1): a stream of bytes or field elements. */
export class Xof {
  private readonly stream = turboshake128.create({ D: 1 });

  constructor(seed: Uint8Array, tag: Uint8Array, ...binder: Uint8Array[]) {
    const head = [new Uint8Array([tag.length & 255, tag.length >> 8]), tag, new Uint8Array([seed.length]), seed];
    this.stream.update(concatenated(...head, ...binder));
  }

  /** Returns the next bytes. */
  read(size: number): Uint8Array {
    return this.stream.xof(size);
  }

  /** Returns the next field elements; 16 bytes that encode none are skipped. */
  elements(count: number): Elements {
    const words = new Uint32Array(4 * count);
    for (let found = 0; found < count; ) {
      const bytes = this.read(ENCODED_SIZE * (count - found));
      const drawn = new Uint32Array(bytes.slice().buffer);
      for (let w = 0; w < drawn.length; w += 4) if (isCanonical(drawn, w)) words.set(drawn.subarray(w, w + 4), 4 * found++);
    }
    return fromWords(words);
  }
}

/** What the aggregators get. */
export interface Shares {
  public: Uint8Array;
  leader: Uint8Array;
  helpers: Uint8Array[];
}

/** A circuit with its proofs in an application's context. */
export class Prio3 {
  /** Bytes of a phone's randomness. */
  readonly randomnessSize: number;

  constructor(readonly circuit: Circuit, private readonly context: Uint8Array, private readonly aggregators = 2) {
    this.randomnessSize = 2 * SEED_SIZE * aggregators;
  }

  /**
   * Returns the shares of a measurement, see `Circuit.encode`.
   *
   * nonce: 16 bytes; randomness: `randomnessSize` bytes, secret, and never used twice.
   */
  shard(measurement: number | readonly number[], nonce: Uint8Array, randomness: Uint8Array): Shares {
    const { circuit } = this;
    const entries = circuit.encode(measurement);
    const seed = (index: number): Uint8Array => randomness.subarray(SEED_SIZE * index, SEED_SIZE * (index + 1));
    const rest = entries.slice();
    const parts: Uint8Array[] = [];
    const proofs: Elements[] = [];
    const helpers: Uint8Array[] = [];
    for (let number = 1; number < this.aggregators; number++) {
      const [share, blind] = [seed(2 * number - 2), seed(2 * number - 1)];
      const expanded = this.expand(share, MEASUREMENT, circuit.measurementLength, number);
      parts.push(this.jointPart(number, blind, nonce, toBytes(expanded)));
      proofs.push(this.expand(share, PROOF, circuit.proofLength, PROOFS, number));
      helpers.push(concatenated(share, blind));
      subtract(rest, expanded);
    }
    const [leaderBlind, proveSeed] = [seed(2 * this.aggregators - 2), seed(2 * this.aggregators - 1)];
    const leaderShare = toBytes(rest);
    const publicShare = concatenated(this.jointPart(0, leaderBlind, nonce, leaderShare), ...parts);
    const jointSeed = new Xof(new Uint8Array(SEED_SIZE), this.tag(JOINT_SEED), publicShare).read(SEED_SIZE);
    const joint = this.expand(jointSeed, JOINT, circuit.calls, PROOFS);
    const proof = circuit.prove(entries, this.expand(proveSeed, PROVE, circuit.wires, PROOFS), joint);
    for (const one of proofs) subtract(proof, one);
    return { public: publicShare, leader: concatenated(leaderShare, toBytes(proof), leaderBlind), helpers };
  }

  private tag(use: number): Uint8Array {
    return concatenated(new Uint8Array([VERSION, 0, 0, 0, 0, this.circuit.id, 0, use]), this.context);
  }

  private expand(seed: Uint8Array, use: number, count: number, ...binder: number[]): Elements {
    return new Xof(seed, this.tag(use), new Uint8Array(binder)).elements(count);
  }

  private jointPart(aggregator: number, blind: Uint8Array, nonce: Uint8Array, share: Uint8Array): Uint8Array {
    return new Xof(blind, this.tag(JOINT_PART), new Uint8Array([aggregator]), nonce, share).read(SEED_SIZE);
  }
}

/** Returns byte arrays one after the other. */
export function concatenated(...parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
