//! Converts a file to a change of the device.

use std::net::SocketAddr;

use wg::config::{AllowedIpChange, DeviceChange, PeerChange};

use super::{Conf, Peer};
use crate::{EndpointName, uapi::Change};

impl Conf {
    /// The change that gives a device exactly the peers of this file, and its port, mark and private
    /// key if the file contains them.
    ///
    /// # Errors
    /// The first error of `resolve`.
    pub fn change<E>(
        &self,
        mut resolve: impl FnMut(&EndpointName) -> Result<SocketAddr, E>,
    ) -> Result<Change, E> {
        let peers = self.peers.iter().map(|peer| {
            let endpoint = peer.endpoint.as_ref().map(&mut resolve).transpose()?;
            Ok(peer.change(endpoint))
        });
        Ok(Change {
            listen_port: self.interface.listen_port,
            fwmark: self.interface.fwmark,
            device: DeviceChange {
                private_key: self.interface.private_key.clone().map(Some),
                replace_peers: true,
                peers: peers.collect::<Result<_, E>>()?,
            },
        })
    }
}

impl Peer {
    fn change(&self, endpoint: Option<SocketAddr>) -> PeerChange {
        let given = |&net| AllowedIpChange { net, remove: false };
        PeerChange {
            preshared_key: self.preshared_key.clone(),
            endpoint,
            persistent_keepalive: self.persistent_keepalive,
            replace_allowed_ips: true,
            allowed_ips: self.allowed_ips.iter().map(given).collect(),
            ..PeerChange::new(self.public_key)
        }
    }
}

#[cfg(test)]
mod tests {
    use wg::{PresharedKey, PrivateKey, PublicKey};

    use super::*;

    const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

    fn conf() -> Conf {
        let text = format!(
            "[Interface]\nPrivateKey = {KEY}\nListenPort = 51820\nFwMark = off\n\
             [Peer]\nPublicKey = {KEY}\nPresharedKey = {KEY}\nEndpoint = a.example:1\n\
             AllowedIPs = 10.0.0.0/8, ::/0\nPersistentKeepalive = 25\n\
             [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n"
        );
        Conf::parse("wg0.conf", &text).unwrap()
    }

    #[test]
    fn change_sets_the_files_keys_and_replaces_all_peers() {
        let address: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let mut asked = Vec::new();
        let change = conf().change(|name| {
            asked.push(name.to_string());
            Ok::<_, ()>(address)
        });
        assert_eq!(asked, ["a.example:1"]);
        let given = |net: &str| AllowedIpChange { net: net.parse().unwrap(), remove: false };
        let first = PeerChange {
            preshared_key: Some(PresharedKey::from_base64(KEY).unwrap()),
            endpoint: Some(address),
            persistent_keepalive: Some(25),
            replace_allowed_ips: true,
            allowed_ips: vec![given("10.0.0.0/8"), given("::/0")],
            ..PeerChange::new(PublicKey::from_base64(KEY).unwrap())
        };
        let second =
            PeerChange { replace_allowed_ips: true, ..PeerChange::new(conf().peers[1].public_key) };
        let expected = Change {
            listen_port: Some(51820),
            fwmark: Some(0),
            device: DeviceChange {
                private_key: Some(Some(PrivateKey::from_base64(KEY).unwrap())),
                replace_peers: true,
                peers: vec![first, second],
            },
        };
        assert_eq!(change, Ok(expected));
    }

    #[test]
    fn unresolved_name_gives_no_change() {
        assert_eq!(conf().change(|name| Err(name.port)), Err(1));
    }
}
