// The dashboard.

/** Shows the dashboard in `root`. */
export function mountDashboard(root: HTMLElement): void {
  const heading = root.appendChild(document.createElement("h1"));
  heading.textContent = "Dashboard";
}
