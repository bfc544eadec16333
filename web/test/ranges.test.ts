// The page must answer squares as the Python package does: ranges.json holds models and the package's answers.
import { describe, expect, it } from "vitest";
import { RangeModel, type Model } from "../src/ranges/model";
import { networkAnswers } from "../src/ranges/network";
import file from "./ranges.json";

interface Known {
  model: Model;
  answers: [number, number, number, number, number, number][];
}
const known = file as unknown as Record<string, Known> & { region: number[] };
const [west, south, east, north] = known.region;
const modelOf = (kind: string): RangeModel => new RangeModel(known[kind].model, { west, south, east, north }, networkAnswers);

describe("answers to squares within, across and beyond the region", () => {
  // What is embedded is rounded to seven or eight digits.
  it.each([["grid", 1e-6], ["network", 1e-4]])("are those of the package's %s", (kind, near) => {
    const model = modelOf(kind);
    for (const [x, y, size, users, stddev, inside] of known[kind].answers) {
      const answer = model.answer({ x, y, size });
      expect(Math.abs(answer.users - users)).toBeLessThanOrEqual(near * Math.max(users, stddev, 1));
      expect(Math.abs(answer.stddev - stddev)).toBeLessThanOrEqual(near * Math.max(stddev, 1));
      expect(answer.inside).toBeCloseTo(inside, 8);
    }
  });

  it("are near the model's own where the page holds a raster of it", () => {
    const model = modelOf("raster");
    const { metres } = known.raster.model;
    const cell = Math.max(...metres) / 32;
    let seen = 0;
    for (const [x, y, size, users, stddev, inside] of known.raster.answers) {
      if (inside < 1 || size < cell) continue;
      const answer = model.answer({ x, y, size });
      expect(Math.abs(answer.users / users - 1)).toBeLessThan(0.02);
      expect(Math.abs(answer.stddev / stddev - 1)).toBeLessThan(0.2);
      seen += 1;
    }
    expect(seen).toBeGreaterThan(2);
  });

  it("are 0 outside the region", () => {
    expect(modelOf("grid").answer({ x: west - 1, y: north, size: 100 })).toEqual({ users: 0, stddev: 0, inside: 0 });
  });

  it("have a square's own sides", () => {
    const model = modelOf("grid");
    const sides = model.boundsOf({ x: (west + east) / 2, y: (south + north) / 2, size: known.grid.model.metres[0] });
    expect(sides.west).toBeCloseTo(west, 9);
    expect(sides.east).toBeCloseTo(east, 9);
  });
});
