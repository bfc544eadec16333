import js from "@eslint/js";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["src/views.ts", "node_modules"] },
  js.configs.recommended,
  ...tseslint.configs.strict,
  { languageOptions: { globals: { process: "readonly", URL: "readonly", TextEncoder: "readonly", performance: "readonly", console: "readonly" } } },
  { rules: { "no-restricted-properties": ["error", { property: "innerHTML", message: "Markup is never parsed: use h() of dom.ts." }], eqeqeq: "error" } },
);
