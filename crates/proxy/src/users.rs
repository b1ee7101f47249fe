//! Users of the proxies and their passwords.

use zeroize::Zeroizing;

/// Names and passwords. If empty, every client is admitted.
#[derive(Default)]
pub struct Users(Vec<(String, Zeroizing<String>)>);

impl Users {
    pub fn add(&mut self, name: String, password: Zeroizing<String>) {
        self.0.push((name, password));
    }

    /// Whether clients must authenticate.
    pub fn are_required(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether this user has this password. All users are compared in full, so that the duration
    /// depends only on the lengths.
    pub fn admit(&self, name: &[u8], password: &[u8]) -> bool {
        self.0.iter().fold(false, |admitted, (known, secret)| {
            admitted | (is_same(known.as_bytes(), name) & is_same(secret.as_bytes(), password))
        })
    }
}

fn is_same(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_name_and_password_together_are_admitted() {
        let mut users = Users::default();
        assert!(!users.are_required());
        users.add("ann".into(), Zeroizing::new("secret".into()));
        users.add("bob".into(), Zeroizing::new(String::new()));
        assert!(users.are_required() && users.admit(b"ann", b"secret") && users.admit(b"bob", b""));
        for (name, password) in [
            ("ann", ""),
            ("ann", "secre"),
            ("ann", "secrets"),
            ("bob", "secret"),
            ("", ""),
            ("an", "secret"),
        ] {
            assert!(!users.admit(name.as_bytes(), password.as_bytes()), "{name} {password}");
        }
    }
}
