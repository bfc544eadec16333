// Networks that read the noisy counts around a square: the same sums as networks/examples.py and networks/local.py.
import { clamp } from "../format";
import { areaOf, askGrid, boxAround, stripAt, type Box, type Network } from "./model";

const swish = (value: number): number => value / (1 + Math.exp(-value));
const mix = (a: number, b: number, share: number): number => a * (1 - share) + b * share;
const fraction = (value: number): number => value - Math.floor(value);
/** Inputs times a matrix that is held row by row, plus the bias. */
const layer = (inputs: number[], weights: number[], bias: number[]): number[] =>
  bias.map((first, to) => inputs.reduce((sum, value, from) => sum + value * weights[from * bias.length + to], first));

/** The model's answers to boxes within the region. */
export function networkAnswers(model: Network): (box: Box) => { users: number; variance: number } {
  const { x_edges: xs, y_edges: ys, side, noise } = model;
  const [columns, rows] = [xs.length - 1, ys.length - 1];
  const sums = new Float64Array((columns + 1) * (rows + 1)); // of all that was counted north-west of a corner
  for (let row = 0; row < rows; row++) {
    let along = 0;
    for (let column = 0; column < columns; column++) {
      along += model.users[row * columns + column];
      sums[(row + 1) * (columns + 1) + column + 1] = sums[row * (columns + 1) + column + 1] + along;
    }
  }
  /** The strip that a place lies in, and how far into it. */
  const locate = (edges: number[], at: number): [number, number] => {
    const inside = clamp(at, 0, side);
    const strip = stripAt(edges, inside);
    return [strip, (inside - edges[strip]) / (edges[strip + 1] - edges[strip])];
  };
  const corner = ([row, down]: [number, number], [column, across]: [number, number]): number => {
    const at = row * (columns + 1) + column;
    const below = at + columns + 1;
    return mix(mix(sums[at], sums[at + 1], across), mix(sums[below], sums[below + 1], across), down);
  };
  const counted = ({ x0, y0, x1, y1 }: Box): number => {
    const [left, right, top, bottom] = [locate(xs, x0), locate(xs, x1), locate(ys, y0), locate(ys, y1)];
    return corner(bottom, right) - corner(top, right) - corner(bottom, left) + corner(top, left);
  };
  const cell = [side / columns, side / rows];
  const cellArea = cell[0] * cell[1];

  /** Answers a box of a size that the networks were trained for. */
  const read = ({ x0, y0, x1, y1 }: Box): { users: number; variance: number } => {
    const [x, y, wide, tall] = [(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0];
    const seen = model.around.map(([dx, dy, w, h]) => {
      const deviation = Math.sqrt(noise * (1 + (w * h * wide * tall) / cellArea));
      return [counted(boxAround(x + dx * wide, y + dy * tall, w * wide, h * tall)), deviation];
    });
    const inputs = seen.map(([count, deviation]) => Math.asinh(count / deviation));
    inputs.push(Math.log((wide * tall) / cellArea) / 2, Math.log(Math.sqrt(noise) / model.smoothing), fraction(x / cell[0]), fraction(y / cell[1]));
    const [own, deviation] = seen[0];
    let [users, variance] = [0, 0];
    for (const net of model.networks) {
      const hidden = layer(layer(inputs, net.w1, net.b1).map(swish), net.w2, net.b2).map(swish);
      const [gate, correction] = layer(hidden, net.w3, net.b3);
      const [logError] = layer(hidden, net.w4, net.b4);
      users += Math.max(own / (1 + Math.exp(-gate)) + correction * deviation, 0) / model.networks.length;
      variance += (Math.exp(logError) * deviation) ** 2 / model.networks.length;
    }
    return { users, variance };
  };

  return (box) => {
    const area = areaOf(box);
    if (area > model.high[0] * model.high[1] * 1.05) return askGrid(model, box); // larger than they were trained for
    const small = clamp(Math.sqrt(area / (model.low[0] * model.low[1])), 1e-9, 1); // smaller: its share, by area
    const { users, variance } = read(boxAround((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2, (box.x1 - box.x0) / small, (box.y1 - box.y0) / small));
    return { users: users * small ** 2, variance: variance * small ** 2 + 1 };
  };
}
