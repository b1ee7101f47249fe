//! SSH logins that the user of the source node confirms, by a login at the provider.

use coordinator::{Profile, Refusal, SshLogin, State, Time};
use hyper::StatusCode;

use super::{login_error::LoginError, pages::Page};
use crate::{admin::api::describe_login, clock::now, network::NetworkState};

/// The confirmation page of an SSH login.
pub(super) fn confirmation_page(
    network: &NetworkState,
    number: &str,
    profile: &Profile,
) -> Result<Page, LoginError> {
    network.read(|state| {
        let login = own_login(state, number, profile, now())?;
        let name = |id| state.node(id).map_or("", |view| view.node.name.as_str());
        let Profile { display_name, username, email, .. } = profile;
        let page = Page::new(StatusCode::OK, "Is this your login?")
            .paragraph("Someone is logging in by SSH from a machine of yours:")
            .table_of(&[
                ("From", name(login.from)),
                ("To", name(login.at)),
                ("As", &login.account),
                ("Account", username),
                ("Name", display_name),
                ("E-mail", email),
            ])
            .paragraph(
                "Continue only if you started this yourself. If you did not, close this page: someone \
                 else is using that machine.",
            );
        Ok(page)
    })
}

/// Handles the user's confirmation.
pub(super) async fn confirm(
    network: &NetworkState,
    number: String,
    profile: Profile,
) -> Result<Page, LoginError> {
    let decided = network.run(move |state, now| {
        let login = own_login(state, &number, &profile, now)?;
        let what = format!("approve {}", describe_login(state, login));
        state.decide_ssh(&number, true, now).map_err(|_: Refusal| LoginError::NoLogin)?;
        state.record_audit(&format!("user {}", profile.username), &what, None, now);
        Ok(())
    });
    let decided = decided.await.map_err(|error| {
        tracing::error!("OIDC: {error:#}");
        LoginError::Broken("the server could not save it")
    })?;
    decided.map(|()| {
        Page::new(StatusCode::OK, "Done")
            .paragraph("The login is approved. You can close this page.")
    })
}

/// The waiting login with this ID, if it comes from a machine of this user.
fn own_login<'a>(
    state: &'a State,
    number: &str,
    profile: &Profile,
    now: Time,
) -> Result<&'a SshLogin, LoginError> {
    let login = state.pending_ssh_login(number, now).ok_or(LoginError::NoLogin)?;
    let user = state.user_of_identity(&profile.identity).map(|user| user.id);
    if user.is_none() || user != login.user {
        return Err(LoginError::OtherUser);
    }
    Ok(login)
}
