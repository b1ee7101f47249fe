"use strict";

// The token of a link is in the fragment, which browsers do not send to servers.
const login = document.getElementById("login");
if (location.hash.length > 1) {
  login.elements.key.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  login.requestSubmit();
}
