// Styles of parts that are loaded late. The policy of the pages allows no style element, but a sheet
// that a script makes.

/** Applies the style sheet `css` to the page for good. */
export function adoptStyles(css: string): void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}
