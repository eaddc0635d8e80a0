//! Makes error messages of the TOML reader readable: it names the expected types of this program.

/// The reader's message, with ranges instead of type names.
pub(super) fn of(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let text = text.trim_end();
    let Some((before, expected)) = text.rsplit_once(", expected ") else { return text.to_owned() };
    let expected = match expected {
        "u8" => "a number from 0 to 255",
        "u16" => "a number from 0 to 65535",
        "u32" => "a number from 0 to 4294967295",
        "u64" | "usize" => "a number from 0 on",
        "struct PortSection" => "a port: { interface = \"NAME\" } or { tap = \"NAME\" }",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    format!("{before}, expected {expected}")
}
