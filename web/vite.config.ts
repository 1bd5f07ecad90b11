import { defineConfig } from "vite";

// The built files lie in the Python package, so that an installation needs no Node.js.
export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../service/optimus_service/web/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the page's security policy allows no inline content
    modulePreload: { polyfill: false },
    target: "es2022",
    rolldownOptions: { input: ["index.html", "docs.html"] },
    chunkSizeWarningLimit: 2000, // the viewer of /docs is one large file
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8080", "/openapi.json": "http://127.0.0.1:8080" } },
});
