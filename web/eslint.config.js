import js from "@eslint/js";
import typescript from "typescript-eslint";

export default typescript.config(
  { ignores: ["src/api-types.ts", "dist", "node_modules"] },
  js.configs.recommended,
  ...typescript.configs.recommended,
  {
    rules: {
      "no-nested-ternary": "error",
      eqeqeq: ["error", "always", { null: "ignore" }],
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
    },
  },
);
