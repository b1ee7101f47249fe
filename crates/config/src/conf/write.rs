//! Writes a file for `SaveConfig`.

use std::fmt;

use ipnet::IpNet;
use wg::{Crypto, PostQuantum, config::PeerState};
use zeroize::Zeroizing;

use super::{Interface, Policy, Router, Table};
use crate::{secret_text, uapi::DeviceState};

/// Writes a file that restores `state`, with the keys in the order of wg-quick(8), followed by those of
/// linerate. `interface` supplies the settings that a device does not have, such as addresses and
/// hooks. Comments are lost.
pub fn write(interface: &Interface, state: &DeviceState) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::new());
    secret_text::append(&mut text, 0, |out| {
        write_interface(out, interface)?;
        write_policy(out, &interface.policy, state.fwmark)?;
        write_router(out, &interface.router)?;
        let on_off = |on| if on { "on" } else { "off" };
        write_each(out, "PathMtu", interface.features.path_mtu.map(on_off))?;
        write_each(out, "PostQuantum", interface.features.post_quantum.map(PostQuantum::name))?;
        write_each(out, "Crypto", interface.features.crypto.map(Crypto::name))?;
        write_each(out, "ReresolveEndpoints", interface.features.reresolve.map(on_off))?;
        write_device(out, state)?;
        state.peers.iter().try_for_each(|peer| write_peer(out, peer))
    });
    text
}

fn write_interface(out: &mut dyn fmt::Write, interface: &Interface) -> fmt::Result {
    out.write_str("[Interface]\n")?;
    write_each(out, "Address", &interface.addresses)?;
    write_each(out, "DNS", &interface.dns.servers)?;
    write_each(out, "DNS", &interface.dns.search_domains)?;
    write_each(out, "MTU", interface.mtu)?;
    write_each(out, "Table", Some(interface.table).filter(|&table| table != Table::Auto))?;
    write_each(out, "SaveConfig", interface.save_config.then_some(true))?;
    write_each(out, "PreUp", &interface.hooks.pre_up)?;
    write_each(out, "PostUp", &interface.hooks.post_up)?;
    write_each(out, "PreDown", &interface.hooks.pre_down)?;
    write_each(out, "PostDown", &interface.hooks.post_down)
}

/// Omits the mask if it does not contain a changed mark, because such a file is invalid.
fn write_policy(out: &mut dyn fmt::Write, policy: &Policy, mark: u32) -> fmt::Result {
    let mask = policy.mask.filter(|mask| mark != 0 && mark & !mask == 0);
    write_each(out, "FwMask", mask.map(|mask| format!("{mask:#x}")))?;
    write_each(out, "DefaultRouteTable", policy.table)?;
    write_each(out, "RulePriority", policy.priority)?;
    write_each(out, "ConnectedFirst", (!policy.connected_first).then_some(false))
}

fn write_router(out: &mut dyn fmt::Write, router: &Router) -> fmt::Result {
    write_each(out, "OfferRoutes", &router.offered)?;
    write_each(out, "Masquerade", router.masquerade.then_some(true))?;
    write_each(out, "ClampMss", router.clamp_mss)?;
    write_each(out, "IpForward", router.ip_forward.then_some(true))
}

fn write_device(out: &mut dyn fmt::Write, state: &DeviceState) -> fmt::Result {
    write_each(out, "ListenPort", Some(state.listen_port).filter(|&port| port != 0))?;
    if state.fwmark != 0 {
        writeln!(out, "FwMark = {:#x}", state.fwmark)?;
    }
    if let Some(key) = &state.private_key {
        writeln!(out, "PrivateKey = {}", *key.to_base64())?;
    }
    Ok(())
}

fn write_peer(out: &mut dyn fmt::Write, state: &PeerState) -> fmt::Result {
    writeln!(out, "\n[Peer]\nPublicKey = {}", state.public_key.to_base64())?;
    if !state.preshared_key.is_zero() {
        writeln!(out, "PresharedKey = {}", *state.preshared_key.to_base64())?;
    }
    if !state.allowed_ips.is_empty() {
        write_allowed_ips(out, &state.allowed_ips)?;
        out.write_char('\n')?;
    }
    write_each(out, "Endpoint", state.endpoint)?;
    let keepalive = Some(state.persistent_keepalive).filter(|&keepalive| keepalive != 0);
    write_each(out, "PersistentKeepalive", keepalive)
}

/// Writes the line of these networks, without a line end.
pub(super) fn write_allowed_ips(out: &mut dyn fmt::Write, nets: &[IpNet]) -> fmt::Result {
    let Some((first, others)) = nets.split_first() else { return Ok(()) };
    write!(out, "AllowedIPs = {first}")?;
    others.iter().try_for_each(|net| write!(out, ", {net}"))
}

fn write_each<T: fmt::Display>(
    out: &mut dyn fmt::Write,
    key: &str,
    values: impl IntoIterator<Item = T>,
) -> fmt::Result {
    values.into_iter().try_for_each(|value| writeln!(out, "{key} = {value}"))
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use proptest::{collection, option, prelude::*};
    use wg::{PresharedKey, PrivateKey, PublicKey};

    use super::*;
    use crate::{
        EndpointName,
        conf::{Conf, Dns, Features, Hooks, NameServer, Peer},
    };

    #[test]
    fn keys_are_written_in_the_order_of_wg_quick() {
        let text = "[interface]\nsaveconfig=true # keep\nPostUp = iptables -A FORWARD -i %i\n\
                    Address = 10.0.0.1/24, fd00::1/64\nDNS = 10.0.0.1, corp.example\nMTU = 1420\n\
                    PreUp = true\nTable = off\nPostUp = second\nPreDown = a = b\nPostDown = d\n";
        let conf = Conf::parse("wg0.conf", text).unwrap();
        let state = DeviceState {
            private_key: Some(PrivateKey::from_bytes(&[0x40; 32])),
            listen_port: 51820,
            fwmark: 0xca6c,
            peers: vec![PeerState {
                public_key: PublicKey::from([1; 32]),
                preshared_key: PresharedKey::from_bytes(&[2; 32]),
                endpoint: Some("[fe80::1%3]:51820".parse().unwrap()),
                last_handshake: None,
                rx_bytes: 1,
                tx_bytes: 2,
                persistent_keepalive: 25,
                allowed_ips: vec!["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()],
                path_mtu: None,
                post_quantum: None,
            }],
        };
        assert_eq!(
            *write(&conf.interface, &state),
            "[Interface]\nAddress = 10.0.0.1/24\nAddress = fd00::1/64\nDNS = 10.0.0.1\n\
             DNS = corp.example\nMTU = 1420\nTable = off\nSaveConfig = true\nPreUp = true\n\
             PostUp = iptables -A FORWARD -i %i\nPostUp = second\nPreDown = a = b\nPostDown = d\n\
             ListenPort = 51820\nFwMark = 0xca6c\n\
             PrivateKey = QEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEA=\n\
             \n[Peer]\nPublicKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\
             PresharedKey = AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\n\
             AllowedIPs = 10.0.0.0/8, ::/0\nEndpoint = [fe80::1%3]:51820\n\
             PersistentKeepalive = 25\n"
        );
    }

    #[test]
    fn mask_is_written_like_a_mark() {
        let text = "[Interface]\nFwMark = 0x100\nFwMask = 0xff00\n";
        let conf = Conf::parse("wg0.conf", text).unwrap();
        let state =
            DeviceState { private_key: None, listen_port: 0, fwmark: 0x100, peers: Vec::new() };
        let written = write(&conf.interface, &state);
        assert_eq!(*written, "[Interface]\nFwMask = 0xff00\nFwMark = 0x100\n");
        assert_eq!(Conf::parse("wg0.conf", &written).unwrap().interface, conf.interface);
    }

    #[test]
    fn mask_without_the_bits_of_the_mark_is_omitted() {
        let text = "[Interface]\nFwMark = 0x100\nFwMask = 0xff00\n";
        let conf = Conf::parse("wg0.conf", text).unwrap();
        for fwmark in [0, 0x101] {
            let state =
                DeviceState { private_key: None, listen_port: 0, fwmark, peers: Vec::new() };
            let written = write(&conf.interface, &state);
            assert!(!written.contains("FwMask"), "{}", *written);
            assert!(Conf::parse("wg0.conf", &written).is_ok(), "{}", *written);
        }
    }

    /// A peer's state as a section of a file.
    fn as_peer(state: &PeerState) -> Peer {
        let endpoint = state.endpoint.map(|endpoint| EndpointName {
            host: match endpoint {
                std::net::SocketAddr::V6(v6) if v6.scope_id() != 0 => {
                    format!("{}%{}", v6.ip(), v6.scope_id())
                }
                _ => endpoint.ip().to_string(),
            },
            port: endpoint.port(),
        });
        Peer {
            public_key: state.public_key,
            preshared_key: Some(state.preshared_key.clone()).filter(|key| !key.is_zero()),
            allowed_ips: state.allowed_ips.clone(),
            endpoint,
            persistent_keepalive: Some(state.persistent_keepalive).filter(|&seconds| seconds != 0),
        }
    }

    fn address() -> impl Strategy<Value = IpNet> {
        (any::<std::net::IpAddr>(), 0..=32_u8)
            .prop_map(|(ip, prefix)| IpNet::new(ip, prefix).expect("no longer than the address"))
    }

    fn name_server() -> impl Strategy<Value = NameServer> {
        (any::<std::net::IpAddr>(), option::of("[a-z][a-z0-9.]{0,14}")).prop_map(
            |(address, scope)| NameServer { address, scope: scope.filter(|_| address.is_ipv6()) },
        )
    }

    /// Policies without a mask, because a mask depends on the state's mark.
    fn policy() -> impl Strategy<Value = Policy> {
        let table = option::of(256..=u32::MAX);
        (table, option::of(1..=32_764_u32), any::<bool>()).prop_map(
            |(table, priority, connected_first)| Policy {
                mask: None,
                table,
                priority,
                connected_first,
            },
        )
    }

    fn router() -> impl Strategy<Value = Router> {
        let offered = collection::vec(address().prop_map(|net| net.trunc()), 0..3);
        (offered, any::<bool>(), option::of(any::<bool>()), any::<bool>()).prop_map(
            |(offered, masquerade, clamp_mss, ip_forward)| Router {
                masquerade: masquerade && !offered.is_empty(),
                offered,
                clamp_mss,
                ip_forward,
            },
        )
    }

    fn interface() -> impl Strategy<Value = Interface> {
        let hooks = || collection::vec("[^\\s#\\p{C}]([^\\p{C}]{0,20}[^\\s\\p{C}])?", 0..3);
        let table =
            prop_oneof![Just(Table::Auto), Just(Table::Off), (1..=u32::MAX).prop_map(Table::Id),];
        (
            collection::vec(address(), 0..4),
            collection::vec(name_server(), 0..3),
            collection::vec("[a-z]{1,8}\\.[a-z~-]{1,8}", 0..3),
            option::of(68..=u16::MAX),
            table,
            any::<bool>(),
            [hooks(), hooks(), hooks(), hooks()],
            policy(),
            (
                router(),
                option::of(any::<bool>()),
                option::of(prop::sample::select(&PostQuantum::ALL[..])),
                option::of(prop::sample::select(&Crypto::ALL[..])),
                option::of(any::<bool>()),
            ),
        )
            .prop_map(
                |(
                    addresses,
                    servers,
                    search_domains,
                    mtu,
                    table,
                    save_config,
                    hooks,
                    policy,
                    (router, path_mtu, post_quantum, crypto, reresolve),
                )| {
                    let [pre_up, post_up, pre_down, post_down] = hooks;
                    Interface {
                        addresses,
                        dns: Dns { servers, search_domains },
                        mtu,
                        table,
                        save_config,
                        hooks: Hooks { pre_up, post_up, pre_down, post_down },
                        // Another table excludes both.
                        policy: if table == Table::Auto { policy } else { Policy::default() },
                        router,
                        features: Features { path_mtu, post_quantum, crypto, reresolve },
                        ..Interface::default()
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn written_file_reads_back(
            interface in interface(),
            state in crate::strategies::device_state(),
        ) {
            // No file is written otherwise.
            let interface = Interface { save_config: true, ..interface };
            let conf = Conf::parse("wg0.conf", &write(&interface, &state)).unwrap();
            let expected = Interface {
                private_key: state.private_key.clone(),
                listen_port: Some(state.listen_port).filter(|&port| port != 0),
                fwmark: Some(state.fwmark).filter(|&mark| mark != 0),
                ..interface
            };
            prop_assert_eq!(conf.interface, expected);
            prop_assert_eq!(conf.peers, state.peers.iter().map(as_peer).collect::<Vec<_>>());
        }
    }
}
