"use strict";
(() => {
  const shown = document.currentScript.dataset.version;
  const pause = 2000;

  // Reloading keeps the place where the reader is.
  async function look() {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== shown) return location.reload();
    } catch { /* The server is gone or busy; what is shown stays. */ }
    setTimeout(look, pause);
  }
  setTimeout(look, pause);
})();
