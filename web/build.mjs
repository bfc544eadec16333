// Bundles the script and the style of all pages into transforms/report/bundle.
import { readFileSync } from "node:fs";
import { build } from "esbuild";

const out = new URL("../transforms/report/bundle/", import.meta.url).pathname;
const common = { bundle: true, minify: true, legalComments: "none", charset: "utf8", logLevel: "warning", target: ["chrome100", "firefox102", "safari16"] };
/** Leaflet's style names pictures of controls that no page has. */
const withoutPictures = {
  name: "without-pictures",
  setup: ({ onLoad }) => onLoad({ filter: /leaflet\.css$/ }, ({ path }) => ({ contents: readFileSync(path, "utf8").replace(/url\([^)]*\)/g, "none"), loader: "css" })),
};
await build({ ...common, entryPoints: ["src/main.ts"], outfile: `${out}page.js`, format: "iife" });
await build({ ...common, entryPoints: ["src/style/page.css"], outfile: `${out}page.css`, plugins: [withoutPictures] });
