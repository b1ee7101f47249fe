//! Logins by SSH that the user of the node where they begin confirms, by a login at the provider.

use coordinator::{Profile, Refusal, SshLogin, State, Time};
use hyper::StatusCode;

use super::{pages::Page, trouble::Trouble};
use crate::{api::words_of_login, clock::now, serve::Server};

/// Which login, and from where.
pub fn question(server: &Server, number: &str, profile: &Profile) -> Result<Page, Trouble> {
    server.network.read(|state| {
        let login = own_login(state, number, profile, now())?;
        let name = |id| state.node(id).map_or("", |view| view.node.name.as_str());
        let Profile { display_name, username, email, .. } = profile;
        let page = Page::new(StatusCode::OK, "Is this your login?")
            .says("Somebody logs in by SSH from a machine of yours:")
            .lists(&[
                ("From", name(login.from)),
                ("To", name(login.at)),
                ("As", &login.account),
                ("Account", username),
                ("Name", display_name),
                ("E-mail", email),
            ])
            .says(
                "Go on only if you began this yourself. If you did not, close this page: somebody \
                 else uses that machine.",
            );
        Ok(page)
    })
}

/// The user says that it is theirs.
pub async fn confirm(server: &Server, number: String, profile: Profile) -> Result<Page, Trouble> {
    let decided = server.network.run(move |state, now| {
        let login = own_login(state, &number, &profile, now)?;
        let what = format!("approve {}", words_of_login(state, login));
        state.decide_ssh(&number, true, now).map_err(|_: Refusal| Trouble::NoLogin)?;
        state.record_audit(&format!("user {}", profile.username), &what, None, now);
        Ok(())
    });
    let decided = decided.await.map_err(|error| {
        tracing::error!("OIDC: {error:#}");
        Trouble::Broken("the server could not keep it")
    })?;
    decided.map(|()| {
        Page::new(StatusCode::OK, "Done").says("The login goes on. You can close this page.")
    })
}

/// The login that waits under a number, if it is from a machine of this user.
fn own_login<'a>(
    state: &'a State,
    number: &str,
    profile: &Profile,
    now: Time,
) -> Result<&'a SshLogin, Trouble> {
    let login = state.pending_ssh_login(number, now).ok_or(Trouble::NoLogin)?;
    let user = state.user_of_identity(&profile.identity).map(|user| user.id);
    if user.is_none() || user != login.user {
        return Err(Trouble::OtherUser);
    }
    Ok(login)
}
