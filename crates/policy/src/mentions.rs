//! Names of users in a policy: finds unmatched names, and renames users.

use crate::{
    alias::Alias,
    model::{Mention, Policy},
    nodes::{Nodes, is_name},
    refusal::{Fault, Reason},
};

impl Policy {
    /// Whether the policy is without rules. Then every node reaches every other.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Likely mistakes that do not make a policy invalid: names that match no user, and the absence of rules.
    pub fn warnings(&self, nodes: &Nodes) -> Vec<Fault> {
        let is_open =
            self.is_open.then(|| Fault { line: 1, key: String::new(), reason: Reason::NoRules });
        let unmatched = self.mentions.iter().filter(|mention| !mention.matches_any_user(nodes));
        let unmatched =
            unmatched.map(|mention| mention.fault(Reason::NoUser(mention.alias.to_string())));
        let mut warnings: Vec<Fault> = is_open.into_iter().chain(unmatched).collect();
        warnings.sort_by_key(|fault| fault.line);
        warnings
    }

    /// The first location in the text that names this user.
    pub fn find_mention_of_user(&self, nodes: &Nodes, user: u64) -> Option<Fault> {
        let mention = self.mentions.iter().find(|mention| mention.is_of(nodes, user))?;
        Some(mention.fault(Reason::Mention(mention.alias.to_string())))
    }

    /// The first location in the text with this user name.
    pub fn find_name(&self, name: &str) -> Option<Fault> {
        let is_it =
            |mention: &&Mention| matches!(&mention.alias, Alias::User(own) if is_name(own, name));
        let mention = self.mentions.iter().find(is_it)?;
        Some(mention.fault(Reason::Mention(mention.alias.to_string())))
    }

    /// The policy's text with a new name for a user, or `None` if the text does not contain the old name.
    /// Mail addresses are not changed.
    pub fn with_renamed_user(
        &self,
        text: &str,
        nodes: &Nodes,
        user: u64,
        name: &str,
    ) -> Option<String> {
        let previous = nodes.users.iter().find(|other| other.id == user)?;
        let is_it = |mention: &&Mention| {
            let by_name =
                matches!(&mention.alias, Alias::User(own) if is_name(own, &previous.name));
            by_name && mention.is_of(nodes, user)
        };
        let mentions: Vec<&Mention> = self.mentions.iter().filter(is_it).collect();
        let written = if name.contains('@') { name.to_owned() } else { format!("{name}@") };
        let (mut renamed, mut done) = (String::new(), 0);
        for mention in &mentions {
            let whole = mention.text.replacen(&mention.alias.to_string(), &written, 1);
            renamed.push_str(text.get(done..mention.span.start)?);
            renamed.push_str(&serde_json::Value::String(whole).to_string());
            done = mention.span.end;
        }
        renamed.push_str(text.get(done..)?);
        (!mentions.is_empty()).then_some(renamed)
    }

    /// Whether each mention refers to the same user as in `previous`, the policy before a rename. `users` are the
    /// users after the rename, and `previous_users` those before it.
    pub fn names_same_users(&self, users: &Nodes, previous: &Self, previous_users: &Nodes) -> bool {
        let all = self.mentions.iter().map(|mention| mention.user(users));
        all.eq(previous.mentions.iter().map(|mention| mention.user(previous_users)))
    }
}

impl Mention {
    fn fault(&self, reason: Reason) -> Fault {
        Fault { line: self.location.line, key: self.location.key.clone(), reason }
    }

    fn matches_any_user(&self, nodes: &Nodes) -> bool {
        match &self.alias {
            Alias::User(name) => nodes.user(name).is_some(),
            Alias::Domain(domain) => nodes.users.iter().any(|user| user.is_of(domain)),
            _ => true,
        }
    }

    fn is_of(&self, nodes: &Nodes, user: u64) -> bool {
        self.user(nodes) == Some(user)
    }

    fn user(&self, nodes: &Nodes) -> Option<u64> {
        match &self.alias {
            Alias::User(name) => nodes.user(name).map(|user| user.id),
            _ => None,
        }
    }
}
