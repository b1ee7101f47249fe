"use strict";

// A link from the command line has its token behind the number sign, which no server sees.
const login = document.getElementById("login");
if (location.hash.length > 1) {
  login.elements.key.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  login.requestSubmit();
}
