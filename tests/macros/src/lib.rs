//! The attribute `#[root_test]`. Tests use it through the crate `root-test`.

use proc_macro::TokenStream;
use quote::quote;
use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::{Error, Expr, ItemFn, Lit, Meta, Token};

/// A test that needs root. See the crate `root-test` for its arguments.
#[proc_macro_attribute]
pub fn root_test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments, item).unwrap_or_else(|error| error.into_compile_error().into())
}

fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream, Error> {
    let arguments = Punctuated::<Meta, Token![,]>::parse_terminated.parse(arguments)?;
    let mut needs = Vec::new();
    let mut alone = false;
    for argument in arguments {
        match argument {
            Meta::Path(path) if path.is_ident("alone") => alone = true,
            Meta::NameValue(value) if value.path.is_ident("needs") => needs.push(value.value),
            other => {
                let message = "only `alone` and `needs = FUNCTION` are known";
                return Err(Error::new_spanned(&other, message));
            }
        }
    }
    let mut function: ItemFn = syn::parse(item)?;
    let ignored = function
        .attrs
        .iter()
        .find(|attribute| attribute.path().is_ident("ignore"))
        .map(|attribute| match &attribute.meta.require_name_value()?.value {
            Expr::Lit(reason) if matches!(reason.lit, Lit::Str(_)) => Ok(reason.clone()),
            other => Err(Error::new_spanned(other, "a reason is a string")),
        })
        .transpose()?;
    function.attrs.retain(|attribute| !attribute.path().is_ident("ignore"));
    let ignored = ignored.map_or_else(|| quote!(None), |reason| quote!(Some(#reason)));
    let name = &function.sig.ident;
    Ok(quote! {
        #function

        ::root_test::inventory::submit! {
            ::root_test::RootTest {
                module: module_path!(),
                name: stringify!(#name),
                run: #name,
                needs: &[#(#needs),*],
                alone: #alone,
                ignored: #ignored,
            }
        }
    }
    .into())
}
