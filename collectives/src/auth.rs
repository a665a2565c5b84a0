//! The job's secret, and the proof of knowing it.
//!
//! Whoever connects and whoever accepts prove to each other that they know the secret, with HMAC-SHA256 over fresh
//! numbers of both sides and everything that was said. The two directions use different labels, so that a proof
//! cannot be sent back to its maker, and numbers are never used twice, so that a recorded one is worth nothing.

use std::fmt;
use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::error::{Error, Result};

/// Bytes of a proof and of a challenge.
pub(crate) const PROOF: usize = 32;
/// The shortest secret that is taken from a user, in bytes.
const SHORTEST: usize = 16;
/// The longest one.
const LONGEST: usize = 1024;

/// What all ranks of a job know and nobody else does. Printing it prints nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A new one: 32 random bytes as hexadecimal digits.
    pub fn generate() -> Result<Self> {
        let bytes: [u8; 32] = random()?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// One that the user chose: 16 to 1024 bytes of text.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let length = text.trim().len();
        if (SHORTEST..=LONGEST).contains(&length) {
            Ok(Self(text.trim().to_string()))
        } else {
            let reason = format!("it has {length} bytes, expected {SHORTEST} to {LONGEST}");
            Err(Error::Secret { reason })
        }
    }

    /// The secret in a file that only its owner may read.
    pub fn read(path: &Path) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        let fail = |e: std::io::Error| Error::Secret {
            reason: format!("{}: {e}", path.display()),
        };
        let mode = std::fs::metadata(path).map_err(fail)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let reason = format!("{} has mode {mode:03o}, expected at most 600", path.display());
            return Err(Error::Secret { reason });
        }
        Self::new(std::fs::read_to_string(path).map_err(fail)?)
    }

    /// The text, for handing it to a process that shall join.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// The proof for a direction and what was said.
    pub(crate) fn prove(&self, label: &str, said: &[&[u8]]) -> [u8; PROOF] {
        // HMAC takes keys of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).expect("HMAC takes keys of any length");
        for part in [label.as_bytes()].iter().chain(said) {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// Whether `proof` is the one expected, compared in constant time.
    pub(crate) fn accepts(&self, proof: &[u8; PROOF], label: &str, said: &[&[u8]]) -> bool {
        self.prove(label, said).ct_eq(proof).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| Error::Secret {
        reason: format!("the system gives no random bytes: {e}"),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_for_one_secret_one_direction_and_one_conversation() {
        let secret = Secret::generate().unwrap();
        let proof = secret.prove("a", &[b"one", b"two"]);
        assert!(secret.accepts(&proof, "a", &[b"one", b"two"]));
        assert!(!secret.accepts(&proof, "b", &[b"one", b"two"]));
        assert!(!secret.accepts(&proof, "a", &[b"onet", b"wo"]));
        assert!(!Secret::generate().unwrap().accepts(&proof, "a", &[b"one", b"two"]));
    }

    #[test]
    fn the_mac_is_the_published_one() {
        // RFC 4231, test case 2, without the length prefixes that `prove` adds.
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let hex: String = mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn nothing_of_it_is_printed() {
        let secret = Secret::new("correct horse battery staple").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert!(Secret::new("short").unwrap_err().to_string().contains("5 bytes"));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "correct horse battery staple\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Secret::read(file.path()).unwrap_err().to_string().contains("mode 644"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(
            Secret::read(file.path()).unwrap(),
            Secret::new("correct horse battery staple").unwrap()
        );
    }
}
