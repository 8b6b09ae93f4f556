#include "backend/amd/simulator/mnemonics.h"

#include <unordered_map>

namespace heddle::amd::simulator {
namespace {

std::string_view without_encoding(std::string_view name) {
  for (bool cut = true; cut;) {
    cut = false;
    for (const std::string_view suffix : {"_e32", "_e64", "_dpp8", "_dpp", "_sdwa"}) {
      if (name.ends_with(suffix)) {
        name.remove_suffix(suffix.size());
        cut = true;
      }
    }
  }
  return name;
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  if (const std::size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
}

const std::unordered_map<std::string_view, std::string_view> kOlderNames = {
    {"v_add_u32", "v_add_nc_u32"},
    {"v_sub_u32", "v_sub_nc_u32"},
    {"v_subrev_u32", "v_subrev_nc_u32"},
    {"v_add_i32", "v_add_nc_i32"},
    {"v_sub_i32", "v_sub_nc_i32"},
    {"v_addc_co_u32", "v_add_co_ci_u32"},
    {"v_subb_co_u32", "v_sub_co_ci_u32"},
    {"v_subbrev_co_u32", "v_subrev_co_ci_u32"},
    {"v_add_u16", "v_add_nc_u16"},
    {"v_sub_u16", "v_sub_nc_u16"},
    {"v_add_i16", "v_add_nc_i16"},
    {"v_sub_i16", "v_sub_nc_i16"},
    {"v_mad_legacy_u16", "v_mad_u16"},
    {"v_mad_legacy_i16", "v_mad_i16"},
    {"v_ffbh_u32", "v_clz_i32_u32"},
    {"v_ffbl_b32", "v_ctz_i32_b32"},
    {"v_ffbh_i32", "v_cls_i32"},
    {"v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32"},
    {"v_mul_dx9_zero_f32", "v_mul_legacy_f32"},
    {"v_cvt_rpi_i32_f32", "v_cvt_nearest_i32_f32"},
    {"v_cvt_flr_i32_f32", "v_cvt_floor_i32_f32"},
    {"s_andn2_b32", "s_and_not1_b32"},
    {"s_andn2_b64", "s_and_not1_b64"},
    {"s_orn2_b32", "s_or_not1_b32"},
    {"s_orn2_b64", "s_or_not1_b64"},
    {"s_andn2_saveexec_b64", "s_and_not1_saveexec_b64"},
    {"s_andn1_saveexec_b64", "s_and_not0_saveexec_b64"},
    {"s_orn2_saveexec_b64", "s_or_not1_saveexec_b64"},
    {"s_orn1_saveexec_b64", "s_or_not0_saveexec_b64"},
    {"s_ff1_i32_b32", "s_ctz_i32_b32"},
    {"s_ff1_i32_b64", "s_ctz_i32_b64"},
    {"s_flbit_i32_b32", "s_clz_i32_u32"},
    {"s_flbit_i32_b64", "s_clz_i32_u64"},
    {"s_flbit_i32", "s_cls_i32"},
    {"s_flbit_i32_i64", "s_cls_i32_i64"},
    {"s_load_dword", "s_load_b32"},
    {"s_load_dwordx2", "s_load_b64"},
    {"s_load_dwordx4", "s_load_b128"},
    {"s_load_dwordx8", "s_load_b256"},
    {"s_load_dwordx16", "s_load_b512"},
};

}  // namespace

std::string canonical_name(std::string_view mnemonic) {
  std::string name(without_encoding(mnemonic));
  if (name.starts_with("v_dual_")) name.replace(0, 7, "v_");
  if (name.starts_with("v_") || name.starts_with("s_")) replace(name, "_num_", "_");
  if (name.starts_with("v_mad_co_")) name.replace(0, 9, "v_mad_");
  if (name.starts_with("ds_read")) name.replace(0, 7, "ds_load");
  if (name.starts_with("ds_write")) name.replace(0, 8, "ds_store");
  replace(name, "ds_load2st64_", "ds_load_2addr_stride64_");
  replace(name, "ds_store2st64_", "ds_store_2addr_stride64_");
  replace(name, "ds_load2_", "ds_load_2addr_");
  replace(name, "ds_store2_", "ds_store_2addr_");
  const auto older = kOlderNames.find(name);
  return older == kOlderNames.end() ? name : std::string(older->second);
}

}  // namespace heddle::amd::simulator
