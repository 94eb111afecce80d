//! Enums of fixed words.

/// Declares an enum that is stored and sent as a fixed word.
macro_rules! words {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(
                $(#[$vdoc])*
                /// Stored and sent as the word that [`as_str`](Self::as_str) returns for it.
                #[serde(rename = $word)]
                $variant
            ),+
        }

        impl $name {
            /// All variants, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word by which the variant is stored and sent.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The variant of this word; `None` if no variant has it.
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        // Not derived, because utoipa 6 ignores a `rename` that a macro wrote, and would list the variants' names instead of the words.
        #[cfg(feature = "schema")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let doc: &[&str] = &[$($doc.trim_ascii()),*];
                let words = Self::ALL.iter().map(|value| value.as_str());
                let schema = utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::String).enum_values(Some(words));
                schema.description((!doc.is_empty()).then(|| doc.join(" "))).into()
            }
        }

        #[cfg(feature = "schema")]
        impl utoipa::ToSchema for $name {}
    };
}
pub(crate) use words;
