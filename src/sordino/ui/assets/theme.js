// Sets the theme before anything is shown, as it was chosen last, else as the system has it.
"use strict";
try {
  const chosen = localStorage.getItem("sordino-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system's theme */ }
