// Bundles the client of two servers into build/client, a package that an app installs. The pages do not contain it.
import { writeFileSync } from "node:fs";
import { build } from "esbuild";

const out = new URL("../build/client/", import.meta.url).pathname;
await build({
  entryPoints: ["src/client/index.ts"], outfile: `${out}client.js`, bundle: true, format: "esm", platform: "browser",
  target: ["chrome100", "firefox102", "safari16", "node20"], charset: "utf8", legalComments: "linked", logLevel: "warning",
});
const about = { name: "sfumato-client", version: "0.1.0", license: "Apache-2.0", type: "module", main: "client.js", types: "types/index.d.ts" };
writeFileSync(`${out}package.json`, `${JSON.stringify(about, null, 2)}\n`);
