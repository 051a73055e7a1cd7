"use strict";
(() => {
  const source = JSON.parse(document.getElementById("figures").textContent);
  const swaps = JSON.parse(document.getElementById("dark-colours").textContent);
  const charts = [...document.querySelectorAll(".chart")];
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const named = new Set(["effects", "factorial", "differences"]);
  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["toImage", "resetScale2d"]],
    toImageButtonOptions: { format: "svg" },
  };

  function coloured(text, dark) {
    if (!dark) return text;
    const pattern = new RegExp(Object.keys(swaps).map((c) => c.replace(/[()]/g, "\\$&")).join("|"), "g");
    return text.replace(pattern, (colour) => swaps[colour]);
  }

  // On a phone the names of the cells stand above their lines, so that the lines keep the width.
  function namesAbove(layout) {
    const names = layout.yaxis.ticktext, row = 46;
    layout.annotations = (layout.annotations || []).concat(names.map((text, i) => ({
      text, x: 0, xref: "paper", xanchor: "left", y: layout.yaxis.tickvals[i], yshift: 15,
      showarrow: false, font: layout.yaxis.tickfont, borderpad: 1,
      bgcolor: getComputedStyle(document.documentElement).getPropertyValue("--paper").trim(),
    })));
    layout.yaxis.showticklabels = false;
    layout.yaxis.range = [-0.5, names.length - 0.2];
    layout.height = row * names.length + 190;
    if (layout.legend) layout.legend.y = -68 / (row * names.length);
  }

  function draw(dark, width) {
    for (const chart of charts) {
      const figure = JSON.parse(coloured(JSON.stringify(source[chart.dataset.figure]), dark));
      if (width) figure.layout.width = width(chart);
      else if (narrow.matches && named.has(chart.dataset.figure)) namesAbove(figure.layout);
      Plotly.react(chart, figure.data, figure.layout, config);
    }
    for (const shape of document.querySelectorAll("[data-fill]")) {
      shape.setAttribute("fill", coloured(shape.dataset.fill, dark));
    }
  }

  // The library lies packed in the page, so that a page of many trials stays small.
  async function unpack() {
    const text = document.getElementById("plotly").textContent;
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  // Paper is light and as wide as A4, whatever the screen is.
  const onPaper = (chart) => (chart.closest(".panels") ? 205 : 670);
  let printing = false;
  const redraw = () => draw(!printing && scheme.matches, printing ? onPaper : null);
  unpack().then(() => {
    redraw();
    scheme.addEventListener("change", redraw);
    narrow.addEventListener("change", redraw);
    window.addEventListener("beforeprint", () => { printing = true; redraw(); });
    window.addEventListener("afterprint", () => { printing = false; redraw(); });
  }).catch(() => {
    for (const chart of charts) chart.textContent = "This browser is too old to draw the figure.";
  });
})();
