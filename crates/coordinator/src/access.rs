//! Who may reach whom. Without a policy that is everybody, on every port.
//!
//! This is all that the rest of the coordinator asks of a policy.

use std::sync::Arc;

use ipnet::IpNet;

use crate::object::{Node, User};

/// What a policy comes to.
#[derive(Clone, Debug)]
pub struct Access {
    allow_all: Arc<str>,
    no_ssh: Arc<str>,
}

impl Access {
    /// Everybody may reach everybody.
    pub fn allow_all() -> Self {
        let rule = r#"[{"SrcIPs":["*"],"DstPorts":[{"IP":"*","Ports":{"First":0,"Last":65535}}]}]"#;
        Self { allow_all: rule.into(), no_ssh: r#"{"rules":[]}"#.into() }
    }

    /// Whether one is shown another: because either may reach the other.
    pub fn shows(&self, viewer: &Node, other: &Node) -> bool {
        viewer.id != other.id
    }

    /// The rules that a node filters by, as JSON of a list of `tailcfg.FilterRule`.
    pub fn filter(&self, _node: &Node) -> Arc<str> {
        Arc::clone(&self.allow_all)
    }

    /// Who may log in to a node by SSH, as JSON of `tailcfg.SSHPolicy`.
    pub fn ssh(&self, _node: &Node) -> Arc<str> {
        Arc::clone(&self.no_ssh)
    }

    /// Whether a user may give a node of theirs a tag.
    pub fn may_tag(&self, _user: Option<&User>, _tag: &str) -> bool {
        false
    }

    /// Whether a node routes a network without an administrator's approval.
    pub fn approves(&self, _node: &Node, _net: &IpNet) -> bool {
        false
    }
}
