//! The certificate authorities that TLS trusts: those in files that the environment names, or those
//! of this machine.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::RootCertStore;
use rustls_native_certs::{CertificateResult, ErrorKind, load_certs_from_paths, load_native_certs};
use sys::process::take_variable;

/// Environment variables with paths of certificates, as in Go (`crypto/x509/root_unix.go`): a file,
/// and folders.
const VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The trusted certificates.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    named: Option<Arc<Named>>,
}

/// The contents of the files that the environment names.
#[derive(Debug)]
struct Named {
    store: RootCertStore,
    /// The variables with their values.
    variables: String,
    /// Errors of the files.
    problems: Vec<String>,
}

impl Roots {
    /// Reads the files that the environment names. Call it before privileges are dropped, because
    /// only root may be able to read them. This machine's own certificates are read on demand.
    pub fn from_environment() -> Self {
        Self::named(VARIABLES.map(|name| {
            let value = env::var_os(name)?;
            if value.is_empty() {
                // An empty variable would name a file without certificates.
                take_variable(name);
            }
            Some(value).filter(|value| !value.is_empty())
        }))
    }

    fn named(values: [Option<OsString>; 2]) -> Self {
        if values.iter().all(Option::is_none) {
            return Self::default();
        }
        let (mut store, mut variables, mut problems) =
            (RootCertStore::empty(), Vec::new(), Vec::new());
        for (name, value) in VARIABLES.into_iter().zip(values) {
            let Some(value) = value else { continue };
            let is_file = name == VARIABLES[0];
            variables.push(format!("{name}={}", Path::new(&value).display()));
            let paths: Vec<PathBuf> =
                if is_file { vec![value.into()] } else { env::split_paths(&value).collect() };
            for path in paths {
                let read = if is_file {
                    load_certs_from_paths(Some(&path), None)
                } else {
                    load_certs_from_paths(None, Some(&path))
                };
                problems
                    .extend(problem(&path, &read, is_file).map(|what| format!("{name}: {what}")));
                store.add_parsable_certificates(read.certs);
            }
        }
        let named = Named { store, variables: variables.join(" "), problems };
        Self { named: Some(Arc::new(named)) }
    }

    pub fn store(&self) -> RootCertStore {
        match &self.named {
            Some(named) => named.store.clone(),
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(load_native_certs().certs);
                roots
            }
        }
    }

    /// The variables that name files, with their values and the errors of the files.
    pub fn source(&self) -> Option<String> {
        let named = self.named.as_ref()?;
        let problem = self.problem().map(|problem| format!(" ({problem})"));
        Some(named.variables.clone() + &problem.unwrap_or_default())
    }

    /// The errors of files that the environment names.
    pub fn problem(&self) -> Option<String> {
        let problems = &self.named.as_ref()?.problems;
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

fn problem(path: &Path, read: &CertificateResult, is_file: bool) -> Option<String> {
    match read.errors.first().map(|error| &error.kind) {
        Some(ErrorKind::Io { inner, path }) => Some(format!("{}: {inner}", path.display())),
        Some(ErrorKind::Pem(error)) => Some(format!("{}: {error}", path.display())),
        Some(error) => Some(format!("{}: {error:?}", path.display())),
        None if is_file && read.certs.is_empty() => {
            Some(format!("{}: it does not contain a certificate", path.display()))
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use base64ct::{Base64, Encoding as _};

    use super::*;

    #[test]
    fn unusable_certificate_file_is_named_with_variable_and_reason() {
        let folder = env::temp_dir().join(format!("linerate-roots-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name).into_os_string();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        let base64 = Base64::encode_string(certificate.der());
        let pem = format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n");
        fs::write(path("good"), pem).unwrap();
        fs::write(path("empty"), "no certificate").unwrap();

        let good = Roots::named([Some(path("good")), None]);
        assert_eq!((good.store().len(), good.problem()), (1, None));
        let expected = format!("SSL_CERT_FILE={}", folder.join("good").display());
        assert_eq!(good.source(), Some(expected));
        for (name, reason) in
            [("empty", "it does not contain a certificate"), ("absent", "No such file")]
        {
            let bad = Roots::named([Some(path(name)), None]);
            let problem = bad.problem().expect("a problem");
            let start = format!("SSL_CERT_FILE: {}: ", folder.join(name).display());
            assert!(problem.starts_with(&start) && problem.contains(reason), "{problem}");
            assert!(bad.source().is_some_and(|source| source.contains(&problem)));
            assert_eq!(bad.store().len(), 0, "no other certificates stand in for the file's");
        }
        let folders = env::join_paths([folder.join("absent"), folder.clone()]).unwrap();
        let both = Roots::named([Some(path("good")), Some(folders)]);
        assert!(!both.store().is_empty());
        assert!(both.problem().is_some_and(|problem| problem.starts_with("SSL_CERT_DIR: ")));
        assert_eq!(Roots::named([None, None]).source(), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}
