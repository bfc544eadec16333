// Light or dark: what the reader's system prefers, until the reader chooses. Paper is light.

export type Mode = "light" | "dark";

export class Theme {
  private readonly listeners: (() => void)[] = [];
  private readonly system = matchMedia("(prefers-color-scheme: dark)");
  private chosen: Mode | null = null;

  private readonly paper = matchMedia("print");
  private printing = false;

  constructor() {
    this.paper.addEventListener("change", () => this.notify());
    this.system.addEventListener("change", () => this.notify());
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
  }

  get mode(): Mode {
    if (this.printing || this.paper.matches) return "light";
    return this.chosen ?? (this.system.matches ? "dark" : "light");
  }

  /** A colour of style/page.css, such as `--ink`. */
  colour(name: string): string {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  toggle(): void {
    this.chosen = this.mode === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = this.chosen;
    this.notify();
  }

  /** Calls `listener` after the mode has changed. */
  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Makes the page light for paper, or ends that. Before a print, because a canvas cannot be repainted once the browser lays out its paper. */
  private print(on: boolean): void {
    this.printing = on;
    const theme = on ? "light" : this.chosen;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    this.notify();
  }

  private notify(): void {
    for (const listener of this.listeners) listener();
  }
}
