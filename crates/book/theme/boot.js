// Runs before the first paint: the theme that was chosen on any page of this server.
document.documentElement.classList.add("js");
try {
  const theme = localStorage.getItem("loquent:theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // No storage: as the system has it.
}
