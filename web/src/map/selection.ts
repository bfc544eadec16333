// The cell that a reader has selected: it stays marked, and the link keeps its id.
import type { Permalink } from "../permalink";
import type { Cells } from "./cells";
import type { Hit } from "./figure";

export class Selection {
  /** The selected cell, if the layer that is shown has it. */
  hit: Hit | null = null;
  private cells: Cells | null = null;

  /** `key`: in the link; without it, nothing stays selected. `changed` is called after each change. */
  constructor(private readonly link: Permalink, private readonly key: string | undefined, private readonly changed: () => void) {
    link.onChange(() => this.show(this.cells));
  }

  /** Selects a row of the layer that is shown; a negative one selects nothing. */
  choose(row: number): void {
    if (!this.key) return;
    this.link.set(this.key, this.cells?.ids[row] ?? null);
    this.show(this.cells);
  }

  /** Shows the cell of the link among these. */
  show(cells: Cells | null): void {
    this.cells = cells;
    const row = cells?.ids.indexOf((this.key && this.link.get(this.key)) || "") ?? -1;
    const [longitude, latitude] = cells && row >= 0 ? cells.middle(row) : [0, 0];
    this.hit = row < 0 ? null : { row, longitude, latitude };
    this.changed();
  }
}
