//! Sandbox of a running server, which limits the damage of a compromised process.
//!
//! ```text
//!   folders, signals ── confine_files ── threads ── sockets, store ── confine_calls ── serves
//! ```
//!
//! If the kernel lacks one part, the other one is still used. If the kernel refuses a part that it
//! supports, the process ends. docs/security.md describes the remaining risks.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::Context;
use sys::process::{
    RetainedCapabilities, retain_capabilities,
    sandbox::{ALWAYS_READABLE, AccessRules, Ports, confine_files, confine_server},
};

use crate::{configuration::Configuration, oidc::table::Secret, store::DatabaseLocation};

/// Path of the CPU limits that the standard library reads.
const GROUP: &str = "/sys/fs/cgroup";
/// Folders of certificate authorities.
const AUTHORITIES: [&str; 4] =
    ["/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"];
const REFUSED: &str = "the kernel refused the sandbox (`--sandbox off` runs without it)";

/// Access rights of a server.
pub struct Sandbox {
    reach: AccessRules,
    connects: bool,
    /// Whether Unix sockets are used for connections as well.
    unix: bool,
}

impl Sandbox {
    /// The rights for a complete configuration.
    pub fn of(configuration: &Configuration) -> Self {
        let mut read: Vec<PathBuf> =
            ALWAYS_READABLE.into_iter().chain([GROUP]).map(PathBuf::from).collect();
        let files = [&configuration.tls_certificate, &configuration.tls_key];
        read.extend(files.into_iter().flatten().flat_map(|file| folders(file)));
        let (mut connects, mut unix) = (configuration.acme.is_some(), false);
        for network in configuration.each() {
            // An invalid setting is reported when the network starts.
            let database = network.database().ok();
            unix |= database.as_ref().is_some_and(DatabaseLocation::is_local);
            connects |= reaches_out(&network, database.as_ref());
            read.extend(files_of(&network, database.as_ref()));
        }
        if connects {
            read.extend(AUTHORITIES.map(PathBuf::from));
            let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(env::var_os);
            read.extend(named.map(PathBuf::from));
        }
        let own = [Some(&*configuration.state_dir), configuration.socket.parent()];
        let reach = AccessRules {
            read,
            write: vec!["/dev/null".into()],
            own: own.into_iter().flatten().map(Path::to_owned).collect(),
            listen: ports(configuration),
            connect: if connects { Ports::Any } else { Ports::default() },
            ..AccessRules::default()
        };
        Self { reach, connects, unix }
    }

    /// Confines this thread, and all that it starts, to the server's files and ports. Of root's
    /// rights, it keeps only those to listen at low ports and to access files of other users.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn confine_files(&self) -> anyhow::Result<()> {
        retain_capabilities(RetainedCapabilities { network: true, files: true })
            .context(REFUSED)?;
        confine_files(&self.reach).context(REFUSED)?.log("files (landlock)");
        Ok(())
    }

    /// Confines all threads to the system calls of a server that already listens.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn confine_calls(&self) -> anyhow::Result<()> {
        let confined = confine_server(self.connects, self.unix).context(REFUSED)?;
        confined.log("system calls (seccomp)");
        Ok(())
    }
}

/// Whether a network connects to other servers.
fn reaches_out(network: &Configuration, database: Option<&DatabaseLocation>) -> bool {
    let derp = &network.derp;
    network.oidc.is_some()
        || database.is_some_and(DatabaseLocation::is_remote)
        || derp.verify_url.is_some()
        || !derp.mesh_with.is_empty()
        || !derp.map_urls.is_empty()
}

/// Files of a network outside the state folder.
fn files_of(network: &Configuration, database: Option<&DatabaseLocation>) -> Vec<PathBuf> {
    let derp = &network.derp;
    let relays = derp.mesh_key_path.iter().chain(&derp.map_paths);
    let mut read: Vec<PathBuf> = relays.flat_map(|file| folders(file)).collect();
    if let Some(Secret::File(file)) = network.oidc.as_ref().map(|oidc| &oidc.secret) {
        read.push(file.clone());
    }
    read.extend(network.database_url_path.clone());
    read.extend(database.into_iter().flat_map(DatabaseLocation::files));
    read
}

fn ports(configuration: &Configuration) -> Vec<u16> {
    let Configuration { listen, listen_plain, metrics_listen, derp, .. } = configuration;
    let all = listen.iter().chain(listen_plain).chain(&configuration.listen_if_possible);
    let all = all.chain(metrics_listen).chain(&derp.listen);
    all.map(std::net::SocketAddr::port).collect()
}

/// The folders of a file and of its symlink target, because the file may be replaced.
fn folders(file: &Path) -> impl Iterator<Item = PathBuf> {
    let real = file.canonicalize().ok();
    let both = [Some(file.to_owned()), real].into_iter().flatten();
    both.filter_map(|file| file.parent().map(Path::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sandbox_allows_only_configured_folders_and_ports() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().join("archive");
        let live = folder.path().join("live");
        for folder in [&real, &live] {
            std::fs::create_dir(folder).unwrap();
        }
        std::fs::write(real.join("chain1.pem"), "").unwrap();
        std::os::unix::fs::symlink(real.join("chain1.pem"), live.join("chain.pem")).unwrap();
        let text = format!(
            "listen = [\"[::]:443\"]\nlisten_plain = [\"[::]:80\"]\nmetrics_listen = [\"[::1]:9\"]\n\
             tls_certificate = {:?}\nstate_dir = \"/a\"\nsocket = \"/b/socket\"",
            live.join("chain.pem")
        );
        let configuration: Configuration = toml::from_str(&text).unwrap();
        let Sandbox { reach, connects, unix } = Sandbox::of(&configuration);
        assert!(reach.read.contains(&real) && reach.read.contains(&live), "{:?}", reach.read);
        assert_eq!((reach.listen, connects, unix), (vec![443, 80, 9], false, false));
        assert_eq!((reach.own, reach.connect), (vec!["/a".into(), "/b".into()], Ports::default()));
        let acme: Configuration = toml::from_str("[acme]").unwrap();
        assert_eq!(Sandbox::of(&acme).reach.connect, Ports::Any);
        let text = "[derp]\nmesh_key_path = \"/c/mesh.key\"\nmesh_with = [\"https://other\"]\n\
                    map_paths = [\"/d/map.json\"]";
        let Sandbox { reach, connects, .. } = Sandbox::of(&toml::from_str(text).unwrap());
        assert!(connects && ["/c", "/d"].iter().all(|folder| reach.read.contains(&folder.into())));
    }

    #[test]
    fn the_sandbox_allows_exactly_the_way_to_postgresql() {
        let with = |database: &str| -> Sandbox {
            let text = format!("database = {database:?}");
            Sandbox::of(&toml::from_str(&text).unwrap())
        };
        let local = with("postgres://a@localhost/net?host=/run/postgresql");
        assert_eq!((local.connects, local.unix), (false, true));
        assert_eq!(local.reach.connect, Ports::default());
        let remote =
            with("postgres://a@db.test/net?sslmode=verify-full&sslrootcert=/etc/own/ca.pem");
        assert_eq!((remote.connects, remote.unix), (true, false));
        assert_eq!(remote.reach.connect, Ports::Any);
        assert!(remote.reach.read.contains(&"/etc/own/ca.pem".into()), "{:?}", remote.reach.read);
        let table = "[networks.b]\nserver_url = \"http://b\"\n\
                     database = \"postgres://a@db.test/net?sslrootcert=/etc/own/b.pem\"\n\
                     [networks.b.derp]\nmap_paths = [\"/d/map.json\"]";
        let of_another = Sandbox::of(&toml::from_str(table).unwrap());
        assert!(of_another.connects && of_another.reach.read.contains(&"/etc/own/b.pem".into()));
        assert!(of_another.reach.read.contains(&"/d".into()));
        let none = Sandbox::of(&toml::from_str("").unwrap());
        assert_eq!((none.connects, none.unix), (false, false));
    }
}
